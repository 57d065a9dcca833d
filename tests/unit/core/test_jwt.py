"""`core/jwt.py`, and what `Authority.verify` makes of a token: signature, times, aud, roles."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import random
from typing import Any

import pytest

from tandembus.core import jwt
from tandembus.core.access import Authority, Grant, Policy, Right, Secret
from tandembus.core.jwt import AUDIENCE, SKEW_MS, JwtTrust, RsaKey
from tandembus.errors import ArgumentError, UnauthorizedError

NOW = 1_700_000_000_000
NOW_S = NOW // 1000
SOON_S = NOW_S + 3_600
SECRET = b"a secret of the directory that signs".ljust(48, b".")
ISSUER = "https://directory.example/tenant"
ROOT = Policy("root", Right.MANAGE, Secret("key one of root"), Secret("key two of root"))
READER = Policy("reader", Right.LISTEN, Secret("key of reader"), Secret("key of reader, 2"))
OWN = Policy("own", Right.SEND, Secret("key of own"), Secret("key of own, 2"))
DEEP = b'{"a":' * 2_000
OWNER = "Azure Service Bus Data Owner"
SENDER = "Azure Service Bus Data Sender"
RECEIVER = "Azure Service Bus Data Receiver"


def text_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def joined(header: object, claims: object) -> str:
    return ".".join(text_of(json.dumps(part).encode()) for part in (header, claims))


def claims_of(**more: Any) -> dict[str, Any]:
    """Without those that are given as None."""
    claims = {"aud": AUDIENCE, "iss": ISSUER, "nbf": NOW_S - 60, "exp": SOON_S, **more}
    return {name: value for name, value in claims.items() if value is not None}


def hs256(secret: bytes, header: dict[str, Any] | None = None, **claims: Any) -> str:
    signed = joined({"alg": "HS256", "typ": "JWT", **(header or {})}, claims_of(**claims))
    return f"{signed}.{text_of(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


@functools.cache
def rsa(seed: int = 1, bits: int = 2_048) -> tuple[int, int]:
    """(modulus, private exponent) of a key for tests; the public one is 65537."""
    chance = random.Random(seed)

    def prime() -> int:
        while True:
            number = chance.getrandbits(bits // 2) | (3 << bits // 2 - 2) | 1
            if all(number % small for small in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)):
                if all(pow(base, number - 1, number) == 1 for base in (2, 3, 5)):
                    return number

    p, q = prime(), prime()
    return p * q, pow(65_537, -1, (p - 1) * (q - 1))


PREFIX = bytes.fromhex("3031300d060960864801650304020105000420")


def padded(signed: bytes, size: int = 256) -> bytes:
    tail = b"\0" + PREFIX + hashlib.sha256(signed).digest()
    return b"\0\x01" + b"\xff" * (size - 2 - len(tail)) + tail


def rs256(header: dict[str, Any] | None = None, *, seed: int = 1, **claims: Any) -> str:
    modulus, private = rsa(seed)
    signed = joined({"alg": "RS256", **(header or {})}, claims_of(**claims))
    number = pow(int.from_bytes(padded(signed.encode()), "big"), private, modulus)
    return f"{signed}.{text_of(number.to_bytes(256, 'big'))}"


def numbers(value: int) -> str:
    return text_of(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def jwks(**more: Any) -> dict[str, Any]:
    rsa_key = {"kty": "RSA", "kid": "r", "use": "sig", "n": numbers(rsa()[0]), "e": "AQAB"}
    secret = {"kty": "oct", "kid": "s", "k": text_of(SECRET)}
    return {"keys": [rsa_key, secret], "issuers": [ISSUER], **more}


def authority(trust: JwtTrust | None = None) -> Authority:
    return Authority([ROOT, READER], lambda path: [OWN] if path == "orders" else [], trust)


def directory() -> Authority:
    return authority(JwtTrust.from_json(jwks()))


# --- signed with a policy's key -------------------------------------------------------------------


def test_a_policy_s_key_signs() -> None:
    """Either key, of the namespace or of the entity; the policy's rights, from any issuer. It is
    how the SDK's own suite makes its tokens."""
    everything = Grant("orders", Right.ALL, SOON_S * 1000 + SKEW_MS)
    for key in (ROOT.primary_key, ROOT.secondary_key):
        assert authority().verify(hs256(key.encode(), iss="sbsuite"), "orders", NOW) == everything
    reading = authority().verify(hs256(b"key of reader"), "orders", NOW)
    assert reading.rights == Right.LISTEN
    assert authority().verify(hs256(b"key of own"), "orders", NOW).rights == Right.SEND
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority().verify(hs256(b"key of own"), "others", NOW)


def test_kid_names_the_policy() -> None:
    """Then no other one counts."""
    token = hs256(b"key one of root", {"kid": "root"})
    assert authority().verify(token, "q", NOW).rights == Right.ALL
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        authority().verify(hs256(b"key one of root", {"kid": "reader"}), "q", NOW)


def test_roles_can_only_take_away_from_a_policy() -> None:
    """A token of a policy that names roles has those of its rights that the roles stand for."""
    sending = authority().verify(hs256(b"key one of root", roles=[SENDER]), "q", NOW)
    assert sending.rights == Right.SEND
    owner = authority().verify(hs256(b"key of reader", roles=[OWNER]), "q", NOW)
    assert owner.rights == Right.LISTEN
    for roles in ([SENDER], [], ["Nobody"], 7):
        with pytest.raises(UnauthorizedError, match="no role"):
            authority().verify(hs256(b"key of reader", roles=roles), "q", NOW)


# --- signed by a directory ------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [rs256, functools.partial(hs256, SECRET)])
@pytest.mark.parametrize(
    ("roles", "rights"),
    [
        ([OWNER], Right.ALL),
        ([SENDER], Right.SEND),
        ([RECEIVER], Right.LISTEN),
        ([SENDER, RECEIVER, "Cook"], Right.SEND | Right.LISTEN),
        (SENDER, Right.SEND),
    ],
)
def test_roles(sign: Any, roles: object, rights: Right) -> None:
    grant = directory().verify(sign(roles=roles), "q", NOW)
    assert grant == Grant("q", rights, SOON_S * 1000 + SKEW_MS)
    assert not grant.proofs


@pytest.mark.parametrize("roles", [None, [], ["Cook"], [1], {}, True])
def test_no_role_no_right(roles: object) -> None:
    """A directory's token allows what its roles say, and nothing without."""
    with pytest.raises(UnauthorizedError, match="no role"):
        directory().verify(rs256(roles=roles), "q", NOW)


def test_roles_of_our_own() -> None:
    trust = JwtTrust.from_json(jwks(roles={"Cook": ["Send"], "Chef": ["Manage"]}))
    assert authority(trust).verify(rs256(roles=["Cook"]), "q", NOW).rights == Right.SEND
    assert authority(trust).verify(rs256(roles=["Chef"]), "q", NOW).rights == Right.ALL
    with pytest.raises(UnauthorizedError):
        authority(trust).verify(rs256(roles=[OWNER]), "q", NOW)


@pytest.mark.parametrize("issuer", [None, "https://directory.example/another", 7, [ISSUER], ""])
def test_issuer(issuer: object) -> None:
    """One directory signs for all its tenants with the same keys."""
    with pytest.raises(UnauthorizedError, match="Issuer"):
        directory().verify(rs256(iss=issuer, roles=[OWNER]), "q", NOW)


@pytest.mark.parametrize("audience", [AUDIENCE, f"{AUDIENCE}/", ["x", AUDIENCE]])
def test_audience(audience: object) -> None:
    assert directory().verify(rs256(aud=audience, roles=[OWNER]), "q", NOW).rights == Right.ALL


@pytest.mark.parametrize("audience", [None, "https://vault.azure.net", [], 5, {AUDIENCE: 1}, ""])
def test_audience_that_is_somebody_else_s(audience: object) -> None:
    """For a directory's token, and for one of a policy's key."""
    for token in (rs256(aud=audience, roles=[OWNER]), hs256(b"key one of root", aud=audience)):
        with pytest.raises(UnauthorizedError, match="Audience"):
            directory().verify(token, "q", NOW)


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "is_good"),
    [
        ({"exp": NOW_S + 1}, True),
        ({"exp": NOW_S - 299}, True),
        ({"exp": NOW_S - 300}, False),
        ({"exp": 0}, False),
        ({"exp": -1}, False),
        ({"exp": None}, False),
        ({"exp": float(SOON_S)}, False),
        ({"exp": 1e400}, False),
        ({"exp": True}, False),
        ({"exp": str(SOON_S)}, False),
        ({"exp": [SOON_S]}, False),
        ({"exp": 10**17}, False),
        ({"exp": 10**300}, False),
        ({"nbf": NOW_S + 300}, True),
        ({"nbf": NOW_S + 301}, False),
        ({"nbf": None}, True),
        ({"nbf": float(NOW_S)}, False),
        ({"nbf": False}, False),
        ({"nbf": "0"}, False),
        ({"nbf": -5}, False),
    ],
)
def test_times(times: dict[str, Any], is_good: bool) -> None:
    """Whole seconds, with five minutes of grace (S11). Anything else that looks like a time has
    been a way around the check (S10, CVE-2026-67242)."""
    token = hs256(b"key one of root", **times)
    if is_good:
        expires_s = times.get("exp", SOON_S)
        assert authority().verify(token, "q", NOW).expires_ms == expires_s * 1000 + SKEW_MS
    else:
        with pytest.raises(UnauthorizedError):
            authority().verify(token, "q", NOW)


def test_what_is_not_json_but_python_reads_it() -> None:
    """NaN is no number of seconds, and ten thousand digits are no number."""
    for body in (b'{"exp": NaN}', b'{"exp": Infinity}', b'{"exp": ' + b"9" * 10_000 + b"}"):
        head = text_of(json.dumps({"alg": "HS256"}).encode())
        signed = f"{head}.{text_of(body)}"
        digest = hmac.new(b"key one of root", signed.encode(), hashlib.sha256).digest()
        with pytest.raises(UnauthorizedError):
            authority().verify(f"{signed}.{text_of(digest)}", "q", NOW)


# --- signatures -----------------------------------------------------------------------------------


def test_a_public_key_is_no_secret() -> None:
    """The old confusion: HS256 with the bytes of the RSA key, in every form that one can take."""
    modulus = rsa()[0]
    public = json.dumps(jwks()["keys"][0])
    raw = modulus.to_bytes(256, "big")
    for secret in (raw, numbers(modulus).encode(), public.encode(), str(modulus).encode(), b""):
        for header in ({}, {"kid": "r"}):
            with pytest.raises(UnauthorizedError, match="InvalidSignature"):
                directory().verify(hs256(secret, header, roles=[OWNER]), "q", NOW)


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "", "hs256", "HS384", "RS512", "ES256", 1, None]
)
def test_algorithms_that_are_not_known(algorithm: object) -> None:
    """`none` above all, with a signature and without."""
    for token in (
        hs256(b"key one of root", {"alg": algorithm}),
        joined({"alg": algorithm}, claims_of()) + ".",
        joined({"alg": algorithm}, claims_of()) + ".AA",
    ):
        with pytest.raises(UnauthorizedError):
            directory().verify(token, "q", NOW)


def test_an_algorithm_that_the_key_is_not_for() -> None:
    """An HS256 signature that says RS256, and the other way round."""
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        directory().verify(hs256(SECRET, {"alg": "RS256"}, roles=[OWNER]), "q", NOW)
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        directory().verify(rs256({"alg": "HS256"}, roles=[OWNER]), "q", NOW)
    with pytest.raises(UnauthorizedError, match="InvalidSignature"):
        directory().verify(rs256({"kid": "s"}, roles=[OWNER]), "q", NOW)


def test_a_changed_token() -> None:
    """One bit anywhere, or the signature of another key."""
    good = rs256({"kid": "r"}, roles=[OWNER])
    assert directory().verify(good, "q", NOW).rights == Right.ALL
    head, body, signature = good.split(".")
    more = text_of(json.dumps(claims_of(roles=[OWNER], sub="me")).encode())
    for bad in (f"{head}.{more}.{signature}", f"{head}.{body}.{signature[:-4]}AAAA"):
        with pytest.raises(UnauthorizedError):
            directory().verify(bad, "q", NOW)
    with pytest.raises(UnauthorizedError):
        directory().verify(rs256({"kid": "r"}, seed=2, roles=[OWNER]), "q", NOW)


def test_paddings_that_are_not_the_one() -> None:
    """The digest is right and the padding is not: readers that searched for the digest were fooled
    (Bleichenbacher 2006). Also a number as large as the modulus, and one byte more or less."""
    modulus, private = rsa()
    key, signed = RsaKey(modulus, 65_537), b"head.body"
    digest = hashlib.sha256(signed).digest()

    def signature(block: bytes, size: int = 256) -> bytes:
        return pow(int.from_bytes(block, "big"), private, modulus).to_bytes(size, "big")

    right = signature(padded(signed))
    assert key.has_signed(signed, right)
    short = b"\0\x01\xff\xff\0" + PREFIX + digest
    assert not key.has_signed(signed, signature(short + bytes(256 - len(short))))
    assert not key.has_signed(signed, signature(short.rjust(256, b"\0")))
    assert not key.has_signed(signed, signature(padded(signed).replace(b"\0\x01", b"\0\x02", 1)))
    assert not key.has_signed(signed, signature(padded(b"another")))
    assert not key.has_signed(signed, b"\0" + right)
    assert not key.has_signed(signed, right[1:])
    assert not key.has_signed(signed, b"")
    assert not key.has_signed(signed, modulus.to_bytes(256, "big"))
    assert not key.has_signed(signed, bytes(256))
    assert not key.has_signed(signed, (1).to_bytes(256, "big"))


def test_the_padding_is_the_standard_s() -> None:
    """Its digest info of SHA-256 (RFC 8017 §9.2, note 1)."""
    assert jwt._SHA256_PREFIX == PREFIX
    block = padded(b"abc")
    assert len(block) == 256
    assert block.endswith(
        bytes.fromhex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "..",
        "e30.e30.",
        "e30.e30.AA",
        f"{joined([], {})}.AA",
        f"{joined({'alg': 'HS256'}, [])}.AA",
        f"{joined({'alg': 'HS256', 'crit': ['x']}, {})}.AA",
        f"{joined({'alg': ['HS256']}, {})}.AA",
        f"{joined({'alg': {}}, {})}.AA",
        f"{joined({'alg': 'HS256'}, claims_of())}.A=",
        f"{joined({'alg': 'HS256'}, claims_of())}.ä",
        f"{joined({'alg': 'HS256'}, claims_of())} .AA",
        f"{text_of(b'[' * 9_000)}.e30.AA",
        f"{text_of(DEEP)}.e30.AA",
        "x" * 20_000,
        f"{joined({'alg': 'HS256'}, {'x': 'x' * 16_384})}.AA",
    ],
)
def test_texts_that_are_no_tokens(text: str) -> None:
    """Any text is a token or an UnauthorizedError, and nothing else."""
    with pytest.raises(UnauthorizedError):
        directory().verify(text, "q", NOW)


def test_nothing_shows_itself() -> None:
    """Not the token, its claims, or a secret of the set."""
    token = hs256(SECRET, sub="somebody")
    shown = f"{jwt.parse(token)!r} {JwtTrust.from_json(jwks())!r}"
    assert "somebody" not in shown
    assert token.rpartition(".")[2] not in shown
    assert SECRET.decode() not in shown


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        ([], "keys"),
        ({}, "keys"),
        ({"keys": []}, "keys"),
        ({"keys": "x"}, "keys"),
        ({"keys": [1]}, "keys"),
        ({"keys": [{"kty": "EC"}]}, "keys"),
        ({"keys": jwks()["keys"]}, "issuers"),
        ({**jwks(), "issuers": []}, "issuers"),
        ({**jwks(), "issuers": ISSUER}, "issuers"),
        ({**jwks(), "issuers": [""]}, "issuers"),
        ({**jwks(), "issuer": ISSUER}, "issuers"),
        (jwks(audiences=[1]), "audiences"),
        (jwks(roles=[]), "roles"),
        (jwks(roles={"x": ["Fly"]}), "roles"),
        (jwks(roles={"x": 1}), "roles"),
        (jwks(keys=[{"kty": "oct", "k": text_of(b"short")}]), "secret"),
        (jwks(keys=[{"kty": "oct"}]), "'k'"),
        (jwks(keys=[{"kty": "oct", "k": "="}]), "'k'"),
        (jwks(keys=[{"kty": "RSA", "n": numbers(rsa(3, 1024)[0]), "e": "AQAB"}]), "RSA"),
        (jwks(keys=[{"kty": "RSA", "n": numbers(rsa()[0]), "e": "AQ"}]), "exponent"),
        (jwks(keys=[{"kty": "RSA", "n": numbers(rsa()[0] + 1), "e": "AQAB"}]), "RSA"),
        (jwks(keys=[{"kty": "RSA", "n": numbers(rsa()[0]), "e": numbers(2**64 + 1)}]), "exponent"),
    ],
)
def test_a_set_that_cannot_work(tree: object, names: str) -> None:
    """The error names what is wrong."""
    with pytest.raises(ArgumentError, match=names):
        JwtTrust.from_json(tree)


def test_keys_for_other_things_are_left_out() -> None:
    """A directory's set has keys of other kinds; they are not ours to refuse."""
    more = [
        {"kty": "EC", "crv": "P-256"},
        {"kty": "RSA", "use": "enc", "n": "", "e": ""},
        {"kty": "RSA", "alg": "RS512", "n": "", "e": ""},
        {"kty": "oct", "alg": "RS256", "k": ""},
    ]
    trust = JwtTrust.from_json(jwks(keys=[*more, *jwks()["keys"]]))
    assert [key.name for key in trust.keys] == ["r", "s"]
