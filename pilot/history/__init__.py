"""A pool's history: trainers' records, timeline, sentences, reports, and the ledger's proof. Decides nothing."""
