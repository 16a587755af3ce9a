"""An installation without extras: all modules that need none are imported, and a table is answered."""

import importlib
import pkgutil
from importlib.util import find_spec

import junctor
import junctor_kernels

# Modules that are an extra by themselves: their import says which.
OF_EXTRAS = ("junctor.sklearn",)

assert find_spec("distributed") is find_spec("matplotlib") is find_spec("prefect") is None, "there are extras"
for package in (junctor, junctor_kernels):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name not in OF_EXTRAS:
            importlib.import_module(module.name)
for name in OF_EXTRAS:
    told = ""
    try:
        importlib.import_module(name)
    except junctor.InputError as error:
        told = str(error)
    assert "pip install" in told, (name, told)
table = junctor.posteriors("data/asia.bif", {"smoke": ["yes", None]}, targets=["lung"])
assert table["status"].to_pylist() == ["ok", "ok"], table
assert abs(table["lung"][0].as_py()[0] - 0.1) < 1e-12, table
print(f"the base answers: {table.num_rows} rows")
