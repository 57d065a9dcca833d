"""The log: bytes in groups, durable one by one. What the bytes mean is `records`."""
