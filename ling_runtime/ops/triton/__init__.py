"""Every operator of a step and of a prompt in Triton, and what they are launched with."""
