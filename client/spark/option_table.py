"""Tables of options: how the source and the sink read what users write.

Spark passes option names in lower case. An unknown option is an error with the nearest name: a
typing error must not change a query silently.
"""

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from triomq.client.spark.errors import OptionError
from triomq.client.spark.option_values import addresses, boolean, text
from triomq.remoting.client.access import Access
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls

IGNORED = frozenset({"path", "inferschema", "mergeschema", "queryname", "checkpointlocation"})
"""options of Spark itself"""


@attrs.frozen(kw_only=True)
class Option:
    """One option: its names, its default as users would write it, and its meaning."""

    name: str
    parse: Callable[[str], Any]
    default: str | None
    meaning: str
    aliases: tuple[str, ...] = ()
    stream: bool = True
    batch: bool = True
    batch_default: str | None = None


NAME_SERVER = Option(
    name="nameServer",
    parse=addresses,
    default=None,
    aliases=("rocketmq.namesrv.addr",),
    meaning="name servers, `host:port;host:port`; required",
)
ACCESS_OPTIONS: tuple[Option, ...] = (
    Option(
        name="useTls",
        parse=boolean,
        default=None,
        meaning="connect with TLS; by default if a TLS file is named",
    ),
    Option(
        name="tlsCaFile",
        parse=text,
        default=None,
        meaning=(
            "PEM file of the certificate authorities to trust, on every node; default: the system's"
        ),
    ),
    Option(
        name="tlsConfigFile",
        parse=text,
        default=None,
        meaning=(
            "a `tls.properties` file on the driver, for client certificates and host names; the"
            " files that it names must be on every node"
        ),
    ),
    Option(
        name="accessKey", parse=text, default=None, meaning="sign requests with this access key"
    ),
    Option(
        name="secretKey",
        parse=text,
        default=None,
        meaning="the secret key; `env:NAME` takes it from an environment variable of the driver",
    ),
)
"""TLS and credentials"""


def parse_table(
    table: Sequence[Option],
    options: Mapping[str, str],
    not_offered: Mapping[str, str],
    *,
    streaming: bool,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the options of a query.

    ``not_offered``: names in lower case that users may expect → what to do instead.

    Returns: option name → value, for all of the table; option name → the name that the user wrote.
    Raises: OptionError that names the option, the cause and the rule.
    """
    known = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    values: dict[str, Any] = {
        option.name: default_of(option, streaming=streaming) for option in table
    }
    given: dict[str, str] = {}
    for key, raw in options.items():
        option = known.get(key.lower())
        if option is None:
            if key.lower() in IGNORED:
                continue
            raise unknown_option(key, known, not_offered)
        if not (option.stream if streaming else option.batch):
            raise OptionError(
                f"option {option.name!r} has no meaning for a"
                f" {'stream' if streaming else 'batch query'}; leave it out"
            )
        if option.name in given:
            raise OptionError(
                f"options {given[option.name]!r} and {key!r} mean the same; give one of them"
            )
        given[option.name] = key
        values[option.name] = parsed(option, raw)
    if NAME_SERVER in table and not values[NAME_SERVER.name]:
        raise OptionError(
            'option \'nameServer\' is missing; add .option("nameServer", "host:9876"). In SQL a'
            " table of CREATE TABLE … USING rocketmq keeps no options for Python sources: use"
            " CREATE TEMPORARY VIEW … USING rocketmq OPTIONS (nameServer 'host:9876', …), or add"
            " WITH (`nameServer` = 'host:9876', …) to the table's name"
        )
    return values, given


def access_of(values: Mapping[str, Any]) -> Access:
    """Return TLS and credentials of the options, otherwise of the driver's environment.

    Raises: OptionError.
    """
    use_tls, ca_file, config_file = values["useTls"], values["tlsCaFile"], values["tlsConfigFile"]
    if use_tls is False and (ca_file or config_file):
        raise OptionError(
            "option 'useTls' is false, and a file for TLS is named; leave one of them out"
        )
    if ca_file and config_file:
        raise OptionError(
            "give one of the options 'tlsCaFile' and 'tlsConfigFile'; the file has"
            " tls.client.trustCertPath"
        )
    access_key, secret_key = values["accessKey"], values["secretKey"]
    if (access_key is None) != (secret_key is None):
        raise OptionError("options 'accessKey' and 'secretKey' belong together; give both")
    if secret_key is not None and secret_key.startswith("env:"):
        name = secret_key.removeprefix("env:")
        secret_key = os.environ.get(name, "")
        if not secret_key:
            raise OptionError(
                f"option 'secretKey' names the environment variable {name}, which is not set on the"
                " driver"
            )
    try:
        tls = None
        if config_file:
            tls = Tls.from_file(config_file)
        elif use_tls or ca_file:
            tls = Tls(ca_file=ca_file)
        credentials = (
            Credentials(access_key=access_key, secret_key=secret_key)
            if access_key is not None
            else None
        )
        access = Access(tls=tls, credentials=credentials)
        if use_tls is not False:
            access = access.or_environment()
        access.check()
    except ConfigError as error:
        raise OptionError(f"TLS cannot be used: {error}") from error
    return access


def default_of(option: Option, *, streaming: bool) -> Any:
    default = option.batch_default if not streaming and option.batch_default else option.default
    return None if default is None else parsed(option, default)


def parsed(option: Option, raw: str) -> Any:
    """Return the value of one option.

    Raises: OptionError.
    """
    try:
        return option.parse(str(raw))
    except ValueError as error:
        raise OptionError(f"option {option.name!r} = {raw!r}: {error}") from error


def unknown_option(
    key: str, known: Mapping[str, Option], not_offered: Mapping[str, str]
) -> OptionError:
    """Return the error for a name that is not in the table."""
    if key.lower() in not_offered:
        return OptionError(
            f"option {key!r} is not offered by this release of the source;"
            f" {not_offered[key.lower()]}"
        )
    if key.lower().startswith("kafka."):
        return OptionError(
            f"option {key!r} belongs to Spark's Kafka source and has no meaning here; remove it"
        )
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.5)
    names = dict.fromkeys(option.name for option in known.values())
    hint = f"did you mean {known[near[0]].name!r}?" if near else f"known are {', '.join(names)}"
    return OptionError(f"unknown option {key!r}; {hint}")
