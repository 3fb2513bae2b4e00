"""Tables of options: how the source and the sink read what users write.

Spark passes option names in lower case. An unknown option is an error with the nearest name: a
typing error must not change a query silently.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from triomq.client.spark.errors import OptionError
from triomq.client.spark.option_values import addresses, boolean, text
from triomq.remoting.client.access import Access
from triomq.remoting.core.config_error import ConfigError
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls

IGNORED = frozenset({"path", "inferschema", "mergeschema", "queryname", "checkpointlocation"})
"""options of Spark itself"""


@attrs.frozen
class Option:
    """One option: its names, its parser, and its default as users would write it."""

    name: str
    parse: Callable[[str], object]
    default: str | None = None
    absent: object = attrs.field(default=None, kw_only=True)
    """the value of an option that is not given and has no default"""
    aliases: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    stream: bool = attrs.field(default=True, kw_only=True)
    batch: bool = attrs.field(default=True, kw_only=True)
    batch_default: str | None = attrs.field(default=None, kw_only=True)

    def field(self) -> Any:
        """Return the field of a class of options that holds the value."""
        return attrs.field(metadata={"option": self})


def option(
    name: str, parse: Callable[[str], object], default: str | None = None, **more: Any
) -> Any:
    """Declare an option as a field of a class; the text below the field is its meaning."""
    return Option(name, parse, default, **more).field()


def options_of(kind: type[attrs.AttrsInstance]) -> dict[str, Option]:
    """Return the options that a class declares, by the name of their field."""
    return {
        field.name: field.metadata["option"]
        for field in attrs.fields(kind)
        if "option" in field.metadata
    }


NAME_SERVER = Option("nameServer", addresses, aliases=("rocketmq.namesrv.addr",))


@attrs.frozen(kw_only=True)
class AccessOptions:
    """TLS and credentials, as users write them."""

    use_tls: bool | None = option("useTls", boolean)
    """connect with TLS; by default if a TLS file is named"""
    ca_file: str | None = option("tlsCaFile", text)
    """PEM file of the certificate authorities to trust, on every node; default: the system's"""
    config_file: str | None = option("tlsConfigFile", text)
    """a `tls.properties` file on the driver, for client certificates and host names; the files that
    it names must be on every node"""
    access_key: str | None = option("accessKey", text)
    """sign requests with this access key"""
    secret_key: str | None = option("secretKey", text)
    """the secret key; `env:NAME` takes it from an environment variable of the driver"""


def parse_table(
    table: Mapping[str, Option],
    options: Mapping[str, str],
    not_offered: Mapping[str, str],
    *,
    streaming: bool,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the options of a query.

    ``table``: field → its option. ``not_offered``: names in lower case that users may expect → what
    to do instead.

    Returns: field → value, for all of the table; option name → the name that the user wrote.
    Raises: OptionError that names the option, the cause and the rule.
    """
    fields = {
        name.lower(): field
        for field, option in table.items()
        for name in (option.name, *option.aliases)
    }
    values = {field: default_of(option, streaming=streaming) for field, option in table.items()}
    given: dict[str, str] = {}
    for key, raw in options.items():
        if key.lower() not in fields:
            if key.lower() in IGNORED:
                continue
            known = {name: table[field].name for name, field in fields.items()}
            raise unknown_option(key, known, not_offered)
        field = fields[key.lower()]
        option = table[field]
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
        values[field] = parsed(option, raw)
    if NAME_SERVER in table.values() and not values["name_server"]:
        raise OptionError(
            'option \'nameServer\' is missing; add .option("nameServer", "host:9876"). In SQL a'
            " table of CREATE TABLE … USING rocketmq keeps no options for Python sources: use"
            " CREATE TEMPORARY VIEW … USING rocketmq OPTIONS (nameServer 'host:9876', …), or add"
            " WITH (`nameServer` = 'host:9876', …) to the table's name"
        )
    return values, given


def take_access(values: dict[str, Any]) -> Access:
    """Take the values of ``AccessOptions`` out, and return TLS and credentials.

    Without options, those of the driver's environment.

    Raises: OptionError.
    """
    given = AccessOptions(**{field: values.pop(field) for field in options_of(AccessOptions)})
    use_tls, ca_file, config_file = given.use_tls, given.ca_file, given.config_file
    if use_tls is False and (ca_file or config_file):
        raise OptionError(
            "option 'useTls' is false, and a file for TLS is named; leave one of them out"
        )
    if ca_file and config_file:
        raise OptionError(
            "give one of the options 'tlsCaFile' and 'tlsConfigFile'; the file has"
            " tls.client.trustCertPath"
        )
    access_key, secret_key = given.access_key, given.secret_key
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
            if access_key is not None and secret_key is not None
            else None
        )
        access = Access(tls=tls, credentials=credentials)
        if use_tls is not False:
            access = access.or_environment()
        access.check()
    except ConfigError as error:
        raise OptionError(f"TLS cannot be used: {error}") from error
    return access


def default_of(option: Option, *, streaming: bool) -> object:
    default = option.batch_default if not streaming and option.batch_default else option.default
    return option.absent if default is None else parsed(option, default)


def parsed(option: Option, raw: str) -> object:
    """Return the value of one option.

    Raises: OptionError.
    """
    try:
        return option.parse(str(raw))
    except ValueError as error:
        raise OptionError(f"option {option.name!r} = {raw!r}: {error}") from error


def unknown_option(
    key: str, known: Mapping[str, str], not_offered: Mapping[str, str]
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
    import difflib  # start-up time: only for this error

    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.5)
    names = dict.fromkeys(known.values())
    hint = f"did you mean {known[near[0]]!r}?" if near else f"known are {', '.join(names)}"
    return OptionError(f"unknown option {key!r}; {hint}")
