"""All that you replace to train on your own data: the files of this folder, and no other.

- ``settings.py``: ``TaskConfig``, the section ``task`` of the configuration, one option ``--task.NAME`` for each field;
  ``validate(config)`` refuses settings that do not fit together, and ``requirements(config)`` says what the task needs
  of the machine. It is read before torch is, so that ``--help`` and a refusal come at once: it must not import torch.
- ``data.py``: ``load(settings)`` returns the training and the validation set, a title, and whatever the model needs to
  know of them. Every process calls it once. If it has a function ``collate(samples)``, that makes the batches; if it
  has ``EVALUATION_BATCH_SIZE``, that is used instead of 256.
- ``model.py``: ``create_model(settings, data)`` returns the network, on the CPU, with random weights; the random
  generator has been seeded, the same on every rank.
- ``objective.py``: ``forward(model, batch)`` returns outputs and targets of one batch, which is on the model's device
  already; ``loss(outputs, targets)`` their mean loss; ``metrics(device)`` a table of ignite's metrics, which are
  recorded as ``val_NAME``; ``SCORE`` says which one of them chooses the best checkpoint. If it has a function
  ``create_optimizer(model, config)``, that is used instead of the one that the section ``optim`` describes; with a
  generator ``losses(model, batch)``, groups of parameters learn in turns; ``write_examples(model, folder, step)`` is run
  after each evaluation, on rank 0.
- ``predict.py``, which may be left out: ``predict(model, data, inputs)`` yields what the command ``predict`` prints.

docs/your-own-task.md walks through all of it; tests/test_task.py holds this task's own tests.
"""
