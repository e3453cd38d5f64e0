"""Many sample sets, draws that come in batches, draws that do not fit in memory."""
