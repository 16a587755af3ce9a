"""Results of methods that are kept with their object. Main function: `method_cache`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import lru_cache, partial
from types import MethodType
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def method_cache(most: int, method: Method) -> Method:
    """Return a bound method that keeps its results for the last arguments.

    It refers to its object weakly: one that refers to itself stays, with all its memory, until garbage is looked for,
    which is seldom where objects are few and large.

    most: number of arguments whose results are kept.
    method: bound; its arguments have a hash.
    """
    assert isinstance(method, MethodType)
    return cast(Method, lru_cache(most)(partial(method.__func__, weakref.proxy(method.__self__))))
