"""The child executor: slots, sections, control flow; runs one provider's partitions, wherever it lives."""
