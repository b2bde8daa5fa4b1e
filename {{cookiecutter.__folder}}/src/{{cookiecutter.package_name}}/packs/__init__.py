"""Packs: capabilities that an answer of the template adds. Each registers its own commands and settings."""
