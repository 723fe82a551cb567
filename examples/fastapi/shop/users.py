"""Who calls: the HTTP API's users, by bearer token.

A shop of your own asks its identity provider here. What matters to lbclient is what
comes out: a name to charge, and how much the user's requests matter.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

import lbclient
from shop.settings import Settings


@dataclass(frozen=True)
class User:
    name: str
    customer: str
    criticality: str


Users = dict[str, User]


@cache
def read_users() -> Users:
    """The users by their tokens."""
    found = json.loads(Path(Settings().users).read_text())
    return {token: User(**user) for token, user in found.items()}


async def authenticate(
    given: Annotated[
        HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))
    ],
    users: Annotated[Users, Depends(read_users)],
) -> AsyncIterator[User]:
    """Calls made by the request are this user's, as important as the user is.

    It is async, as FastAPI runs other dependencies in a thread: what they set there
    does not reach the endpoint.
    """
    user = users.get(given.credentials) if given else None
    if user is None:
        raise HTTPException(401, "no user", {"WWW-Authenticate": "Bearer"})
    with lbclient.customer(user.customer), lbclient.criticality(user.criticality):
        yield user


CurrentUser = Annotated[User, Depends(authenticate)]
