"""What a store or the way to it says -> the errors of the contract."""

from __future__ import annotations

import errno
import http.client
import os

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from ckptgov.errors import SlowDown, StorageError, TransientStorageError
from ckptgov.storage._paths import printable

FAILURES: tuple[type[Exception], ...] = (
    boto.BotoCoreError,
    boto.ClientError,
    ResponseParserError,
    HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,  # botocore's parsers, for numbers and times that are none
    KeyError,
    RecursionError,  # botocore follows a redirect without a region for ever
)
"""All that a call of a client may raise on its own account."""


class Unmet(StorageError):
    """412: a condition of the request did not hold."""


class Conflict(TransientStorageError):
    """409: another conditional request on the same key got in between."""


class NoSuchUpload(StorageError):
    """The multipart upload was completed or aborted, or never was."""


class Unsupported(StorageError):
    """The store does not know the call, or a part of it."""


class WrongChecksum(TransientStorageError):
    """The store received other bytes than the checksum was computed of."""


class EndedEarly(ConnectionError):
    """A body was shorter than announced."""


_ABSENT = {"NoSuchKey", "NoSuchVersion", "404", "NotFound"}
_BUSY = {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException"}
_BUSY |= {"TooManyRequests", "TooManyRequestsException", "RequestLimitExceeded"}
_BUSY |= {"BandwidthLimitExceeded", "RequestThrottled", "RequestThrottledException"}
_PASSING = {"InternalError", "InternalFailure", "RequestTimeout", "ServiceUnavailable"}
_PASSING |= {"IncompleteBody", "RequestTimeoutException", "PriorRequestNotComplete"}
_CHECKSUMS = {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch"}
_CHECKSUMS |= {"XAmzContentChecksumMismatch"}

_HINTS = {
    "NoSuchBucket": "create the bucket, or correct the tier's address",
    "AccessDenied": "give these credentials the right; on a delete also look for an object lock"
    " or a legal hold",
    "403": "look at the credentials and at the rights they carry",
    "AllAccessDisabled": "the provider closed the account or the bucket",
    "InvalidAccessKeyId": "the store does not know this access key; is the endpoint right?",
    "SignatureDoesNotMatch": "the secret key is wrong, or a proxy changes requests",
    "ExpiredToken": "the session's credentials ran out; log in anew",
    "InvalidToken": "the session token is of another account, or ran out",
    "RequestTimeTooSkewed": "set this machine's clock",
    "AuthorizationHeaderMalformed": "set the region of the bucket (AWS_REGION)",
    "PermanentRedirect": "set the region of the bucket (AWS_REGION)",
    "301": "set the region of the bucket (AWS_REGION)",
    "KeyTooLongError": "a key holds 1,024 bytes, escapes and prefix included; shorten the names",
    "InvalidObjectState": "the object is archived; bring it back first",
    "QuotaExceeded": "raise the quota of the bucket, or free some of it",
    "XMinioStorageFull": "free space on the store",
    "InsufficientCapacity": "free space on the store",
}

_LASTING: dict[type[Exception], str] = {
    boto.NoCredentialsError: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
    boto.PartialCredentialsError: "access key and secret key are needed together",
    boto.CredentialRetrievalError: "look at the source of the credentials that the profile names",
    boto.ProfileNotFound: "correct AWS_PROFILE",
    boto.SSLError: "the certificate is not trusted (AWS_CA_BUNDLE), or this is no https endpoint",
    boto.InvalidRegionError: "correct AWS_REGION",
    RecursionError: "the store redirects in circles; set the region of the bucket (AWS_REGION)",
}

_PASSING_ON_THE_WAY = (
    boto.HTTPClientError,
    boto.ConnectionError,
    boto.IncompleteReadError,
    ResponseParserError,
    HTTPError,
    http.client.HTTPException,
    OSError,
)


def translate(error: Exception, where: str) -> Exception:
    """What to raise from ``error``, that a call about ``where`` ended with."""
    shown = printable(where)
    if isinstance(error, boto.ClientError):
        return _refusal(error, where)
    if isinstance(error.__context__, RecursionError):  # met by the HTTP client on its way
        error = error.__context__
    for kind, hint in _LASTING.items():
        if isinstance(error, kind):
            return StorageError(f"{shown}: {_sentence(error)}", hint=hint)
    if isinstance(error, _PASSING_ON_THE_WAY):
        return TransientStorageError(
            f"{shown}: the store does not answer as it should ({_sentence(error)})",
            hint="look at the endpoint, the network and the store",
        )
    return StorageError(f"{shown}: {_sentence(error)}", hint="look at the AWS settings in use")


def answer_of(error: BaseException | None) -> tuple[str, int]:
    """Code and HTTP status of a refusal, or of the one that is its cause; else ``("", 0)``."""
    if isinstance(error, boto.ClientError):
        told = error.response.get("Error", {})
        meta = error.response.get("ResponseMetadata", {})
        return str(told.get("Code", "")), int(meta.get("HTTPStatusCode", 0) or 0)
    return answer_of(error.__cause__) if error is not None else ("", 0)


def _refusal(error: boto.ClientError, where: str) -> Exception:
    code, status = answer_of(error)
    told = error.response.get("Error", {}).get("Message", "")
    message = f"{printable(where)}: {printable(str(told)) or 'refused'} ({code or status})"
    hint = _HINTS.get(code)
    if code in _ABSENT:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
    if code == "NoSuchBucket":
        return StorageError(f"{printable(where)}: no such bucket", hint=hint)
    if code == "NoSuchUpload":
        return NoSuchUpload(message)
    if code in _CHECKSUMS:
        return WrongChecksum(message, hint="bytes change on their way; look at network and proxies")
    if code in _BUSY or status in (429, 503):
        return SlowDown(message, hint="the store is busy; lower the tier's budget")
    if code == "NotImplemented" or status == 501:
        return Unsupported(message, hint="see what `tier check` found of this store")
    if status == 412 or code == "PreconditionFailed":
        return Unmet(message)
    if status == 409 and code in ("ConditionalRequestConflict", "OperationAborted"):
        return Conflict(message, hint="someone else writes the same key")
    if code in _PASSING or status >= 500:
        return TransientStorageError(message, hint="the store failed; look at its own log")
    return StorageError(message, hint=hint)


def _sentence(error: Exception) -> str:
    # botocore's own texts tell endpoints and settings, never keys.
    return printable(str(error)) or type(error).__name__


def is_answer(error: Exception) -> bool:
    """Whether the store itself said it: then it exists, and can be reached."""
    return isinstance(error, boto.ClientError)
