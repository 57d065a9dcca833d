"""Judges from outside: the SDK's own samples, the SDK for JavaScript, two plain AMQP clients."""
