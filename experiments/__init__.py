"""From a composed configuration to records: plan, launch, load, gate, file."""
