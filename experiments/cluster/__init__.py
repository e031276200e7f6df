"""Sweeps on a cluster: cells in jobs on nodes, records on the shared disk, one collector that reads them."""
