"""All that you replace to train on your own data: the files of this folder, and no other.

- ``settings.py``: ``TaskConfig``, the section ``task`` of the configuration, one option ``--task.NAME`` for each field.
  It is read before torch is, so that ``--help`` and a refusal come at once: it must not import torch.
- ``data.py``: ``load(settings)`` returns the training set as ``train``, the validation set as ``val``, and whatever the
  model needs to know of them. Every process calls it once.
- ``model.py``: ``create_model(settings, data)`` returns the network, on the CPU, with random weights; the random
  generator has been seeded, the same on every rank.
- ``objective.py``: ``forward(model, batch)`` returns outputs and targets of one batch, which is on the model's device
  already; ``loss(outputs, targets)`` their mean loss; ``SCORE`` and ``HIGHER_IS_BETTER`` say which metric chooses the
  best checkpoint, or "loss".

What may be left out:

- in ``settings.py``: ``validate(config)`` refuses settings that do not fit together; ``requirements(config)`` says what
  the task requires of the machine;
- in ``data.py``: what ``load`` returns may have a ``title``, for the log and curves.png; ``collate(samples)`` makes the
  batches; ``EVALUATION_BATCH_SIZE`` is used instead of 256;
- in ``objective.py``: ``metrics(device)`` returns a table of ignite's metrics, which are recorded as ``val_NAME``;
  ``LOSS_LABEL`` is the loss's name in curves.png; ``create_optimizer(model, config)`` takes the place of the optimizer
  that the section ``optim`` describes; with a generator ``losses(model, batch)``, groups of parameters learn in turns;
  ``write_examples(model, folder, step)`` is run after each evaluation, on rank 0; a function of this file that has a
  parameter ``settings``, or ``data``, gets the task's settings, or what ``load`` returned;
- ``predict.py``: ``predict(model, data, inputs)`` yields what the command ``predict`` prints.

docs/your-own-task.md walks through all of it; tests/test_task.py holds this task's own tests.
"""
