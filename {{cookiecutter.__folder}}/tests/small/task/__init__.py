"""A small regression, quick to learn; its score is better the lower it is, its batches are dictionaries."""
