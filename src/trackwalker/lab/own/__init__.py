"""A simulated run as our own launcher and agent leave it: the same world, another hand that writes it down."""
