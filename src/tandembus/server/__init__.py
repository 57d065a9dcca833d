"""The AMQP edge: connections, links and nodes on the engine."""
