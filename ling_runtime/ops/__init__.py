"""Hot operators: one file each, with a PyTorch reference that defines the numerics and variants that declare their
class.
"""
