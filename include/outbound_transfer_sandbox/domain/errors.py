"""The error that the service's rules raise (service-api.md, R48). The API returns it as `{error, message}`."""

from __future__ import annotations

from collections.abc import Mapping


class ApiError(Exception):
    """A refused request: HTTP status, stable code, message for people and extra response headers."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


def invalid_request(message: str) -> ApiError:
    return ApiError(400, "invalid_request", message)


def invalid_api_key(message: str) -> ApiError:
    return ApiError(401, "invalid_api_key", message)


def not_found(what: str) -> ApiError:
    return ApiError(404, "not_found", f"No such {what}.")


def invalid_state(message: str) -> ApiError:
    return ApiError(409, "invalid_state", message)


def rate_limited(seconds: int) -> ApiError:
    return ApiError(429, "rate_limited", f"Too many requests. Retry in {seconds} s.", {"Retry-After": str(seconds)})
