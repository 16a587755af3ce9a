"""Prefect flows over the plain functions of junctor."""
