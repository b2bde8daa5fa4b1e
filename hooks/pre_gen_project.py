"""Refuse answers that cannot become a working project, in one sentence that names the fix.

Cookiecutter renders this file, runs it in the empty project folder and, when it exits with 1, removes that folder, and
prints a traceback of its own after the sentence. A pre_prompt hook could not prevent that: it runs before the questions.
"""

import json
import keyword
import re
import sys
from importlib import metadata

# JSON inside a JSON string: whatever the answers hold, this stays a plain Python string literal.
ANSWERS = json.loads({{cookiecutter | jsonify | jsonify}})

MAX_LENGTH = 40
# What a project or its requirements import or call: of two packages with one name, the first on the path is imported.
TAKEN = """
absl alembic annotated_doc annotated_types anyio arrow attr attrs blinker boto3 botocore bravado
bravado_core brotli cachetools certifi charset_normalizer clearml click cloudpickle colorlog contourpy
cryptography cycler data databricks dateutil docker docstring_parser fastapi filelock flask fqdn frame
fsspec functorch furl future git gitdb google gradio_client greenlet h11 horovod horovodrun httpcore2 httpx
httpx2 huggingface_hub idna ignite importlib_metadata importlib_resources isoduration jinja2 jmespath joblib
jsonargparse jsonpointer jsonref jsonschema jsonschema_specifications jwt kiwisolver lark mako markdown_it
markupsafe matplotlib mdurl mlflow monotonic mpi4py mpirun mpmath msgpack mypy neptune networkx nox numpy
oauthlib opentelemetry optuna orderedmultidict orjson packaging pandas pathlib2 pip platformdirs proxytypes
psutil pyarrow pydantic pydantic_core pygments pyparsing pytest python python3 python_multipart
pytorch_ignite pytz pyyaml referencing requests requests_oauthlib rfc3339_validator rfc3986_validator
rfc3987_syntax rich rpds ruff runs s3transfer scikit_learn scipy sentry_sdk setuptools simplejson six
sklearn small smmap sniffio sqlalchemy sqlparse srun starlette swagger_spec_validator sympy tensorboard test
threadpoolctl torch torch_xla torchgen torchrun torchvision tornado tqdm trackio truststore typeshed_client
typing_extensions typing_inspection uri_template urllib3 uv uvicorn visdom wandb watchfiles webcolors
websocket wheel xxhash yaml zipp
"""
DEVICES = {"aux", "con", "nul", "prn", *(port + digit for port in ("com", "lpt") for digit in "123456789")}


def refused_cookiecutter(version: str, oldest: str) -> str | None:
    """Say why this version of cookiecutter would render another project, or return None."""
    if [int(number) for number in re.findall(r"\d+", version)] >= [int(part) for part in oldest.split(".")]:
        return None
    return (
        f"cookiecutter {version} renders this template wrongly: install {oldest} or newer "
        f'(python3 -m pip install "cookiecutter>={oldest}")'
    )


def refused_target(support: dict, hardware: str, backend: str, launcher: str) -> tuple[str, dict] | None:
    """Say why the target is not in the support table and which one that is in it is nearest, or return None."""
    row = support[backend]
    if hardware not in row["hardware"]:
        refusal = row["refused"][hardware]
    elif launcher not in row["launchers"]:
        refusal = row["refused"][launcher]
    else:
        return None
    nearest = {"hardware": hardware, "backend": backend, "launcher": launcher} | refusal["choose"]
    launchers = support[nearest["backend"]]["launchers"]
    if nearest["launcher"] not in launchers:
        nearest["launcher"] = launchers[0]
    return refusal["why"], nearest


def refused_combination(support: dict, hardware: str, backend: str, launcher: str) -> str | None:
    """Say in one sentence why the combination is refused and what to choose instead, or return None."""
    if not (refused := refused_target(support, hardware, backend, launcher)):
        return None
    why, nearest = refused
    return (
        f"{why}, so hardware={hardware} backend={backend} launcher={launcher} cannot work: choose "
        + " ".join(f"{key}={value}" for key, value in nearest.items())
    )


def refused_text(key: str, text: str) -> str | None:
    """Say why a free text (a name, a description) would break a file, or return None."""
    if key != "description" and not text.strip():
        return f"{key} is empty: give it a text"
    # A zero-width joiner is what holds some emoji together.
    if not text.replace("\u200d", "").isprintable():
        return (
            f"{key} {text!a} contains a line break or a control character: write it on one line of plain text"
        )
    # Built from halves, because this file itself goes through the template engine.
    brackets = ["{" + mark for mark in "%#{"] + [mark + "}" for mark in "}%#"]
    if any(bracket in text for bracket in brackets):
        return f"{key} {text!a} contains template brackets: remove double braces, and braces next to % or #"
    return None


def refused_slug(slug: str, folder: str) -> str | None:
    """Say why ``project_slug`` cannot name a folder and a distribution, or return None."""
    if slug != folder or not re.fullmatch(r"[A-Za-z0-9]+([-_][A-Za-z0-9]+)*", slug):
        return (
            f"project_slug {slug!a} cannot name a folder and a distribution: use 1 to {MAX_LENGTH} letters and digits "
            "in words joined by single dashes, for example project_slug=my-project"
        )
    if slug.lower().replace("-", "_") in TAKEN.split():
        return f"project_slug {slug!a} is taken by another package or command: choose project_slug={slug}-project"
    if slug.lower() in DEVICES:
        return f"project_slug {slug!a} is a device of Windows and no folder there: choose project_slug={slug}-project"
    return None


def refused_package(name: str) -> str | None:
    """Say why ``package_name`` cannot be imported or would shadow another module, or return None."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or len(name) > MAX_LENGTH:
        return (
            f"package_name {name!a} cannot be imported: use a lower-case letter, then up to {MAX_LENGTH - 1} letters, "
            "digits and underscores, for example package_name=my_project"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return f"package_name {name!a} is a keyword of Python: choose package_name={name}_project"
    if name in TAKEN.split() or name in sys.stdlib_module_names:
        return f"package_name {name!a} would shadow another module: choose package_name={name}_project"
    if name in DEVICES:
        return f"package_name {name!a} is a device of Windows and no folder there: choose package_name={name}_project"
    return None


def refusal(answers: dict) -> str | None:
    """Return the first reason to refuse ``answers``, one sentence, or None."""
    return (
        refused_cookiecutter(metadata.version("cookiecutter"), answers["_oldest_cookiecutter"])
        or refused_text("project_name", answers["project_name"])
        or refused_text("description", answers["description"])
        or refused_text("author_name", answers["author_name"])
        or refused_slug(answers["project_slug"], answers["__folder"])
        or refused_package(answers["package_name"])
        or refused_combination(
            answers["_support"], answers["hardware"], answers["__backend"], answers["__launcher"]
        )
    )


if __name__ == "__main__":
    if sentence := refusal(ANSWERS):
        sys.exit(f"ddl-template: {sentence}.")
