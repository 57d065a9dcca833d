"""AMQP 1.0 without I/O, for both roles: bytes in, values and events out. No sockets, no clock."""
