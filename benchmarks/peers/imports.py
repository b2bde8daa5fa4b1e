"""What no training of these data can start without: torch, ignite and scikit-learn, which the data come with."""

import ignite.engine
import ignite.handlers
import sklearn.datasets
import torch

assert ignite.engine and ignite.handlers and sklearn.datasets and torch
print("step 1/", flush=True)
