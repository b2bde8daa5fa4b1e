"""What every program imports: torch, ignite, and scikit-learn for the data."""

import ignite.engine
import ignite.handlers
import sklearn.datasets
import torch

assert ignite.engine and ignite.handlers and sklearn.datasets and torch
print("step 1/", flush=True)
