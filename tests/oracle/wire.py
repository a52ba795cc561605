"""Kafka's protocol by Kafka's own schemas, read out of the archive of its client: every field of a request is sent as it is asked
for, and every field of an answer is seen. Knows no broker, and judges nothing.
"""

import json
import re
import socket
import struct
import uuid
import zipfile

# How long an answer may take before the broker is called silent.
PATIENCE_S = 10


class Closed(Exception):
    """The broker ended the connection instead of answering."""


class Versions:
    """A range of versions as the schemas write it: `3+`, `0-4`, `2` or `none`."""

    def __init__(self, text):
        self.first, self.last = 1, 0
        if text != "none":
            first, _, last = text.partition("-")
            self.first = int(first.rstrip("+"))
            self.last = 2**15 if text.endswith("+") else int(last or first)

    def __contains__(self, version):
        return self.first <= version <= self.last


class Field:
    """One field of a message."""

    def __init__(self, spec, structs, flexible):
        self.name = spec["name"][0].lower() + spec["name"][1:]
        self.type = spec["type"]
        self.versions = Versions(spec["versions"])
        self.nullable = Versions(spec.get("nullableVersions", "none"))
        self.tagged = Versions(spec.get("taggedVersions", "none"))
        self.tag = spec.get("tag")
        self.flexible = Versions(spec["flexibleVersions"]) if "flexibleVersions" in spec else flexible
        of = self.type.removeprefix("[]")
        inner = spec.get("fields") or structs.get(of)
        self.fields = [Field(inside, structs, flexible) for inside in inner] if inner else None
        self.default = default(spec, self)


def default(spec, field):
    """What a field is where nobody says."""
    given = spec.get("default")
    if given == "null":
        return None
    if field.type.startswith("[]"):
        return []
    if field.fields:
        return {}
    match field.type:
        case "string":
            return given or ""
        case "bool":
            return str(given).lower() == "true"
        case "bytes" | "records":
            return b""
        case "uuid":
            return uuid.UUID(int=0)
        case "float64":
            return float(given or 0)
        case _:
            return int(str(given or 0), 0)


class Message:
    """A request or an answer of one kind."""

    def __init__(self, text):
        spec = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        self.key = spec.get("apiKey")
        self.versions = Versions(spec["validVersions"])
        self.flexible = Versions(spec.get("flexibleVersions", "none"))
        structs = {struct["name"]: struct["fields"] for struct in spec.get("commonStructs", [])}
        self.fields = [Field(field, structs, self.flexible) for field in spec.get("fields", [])]


class Schemas:
    """The messages in the archive `kafka-clients-*.jar`."""

    def __init__(self, archive):
        self.archive = zipfile.ZipFile(archive)
        self.read = {}

    def requests(self):
        """The name of each request by its key."""
        names = [name.removeprefix("common/message/") for name in self.archive.namelist()]
        names = [name.removesuffix("Request.json") for name in names if name.endswith("Request.json") and "/" not in name]
        return {self.message(f"{name}Request").key: name for name in names}

    def message(self, name):
        if name not in self.read:
            self.read[name] = Message(self.archive.read(f"common/message/{name}.json").decode())
        return self.read[name]


NUMBERS = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "uint32": ">I", "int64": ">q", "float64": ">d"}


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def sized(data, compact):
    """Bytes behind their length; `None` is null."""
    if data is None:
        return b"\0" if compact else struct.pack(">i", -1)
    return (varint(len(data) + 1) if compact else struct.pack(">i", len(data))) + data


def text(value, compact):
    data = None if value is None else value.encode()
    if compact:
        return sized(data, True)
    return struct.pack(">h", -1) if data is None else struct.pack(">h", len(data)) + data


def write_value(kind, field, value, version):
    compact = version in field.flexible
    if kind.startswith("[]"):
        if value is None:
            return b"\0" if compact else struct.pack(">i", -1)
        length = varint(len(value) + 1) if compact else struct.pack(">i", len(value))
        return length + b"".join(write_value(kind[2:], field, item, version) for item in value)
    if field.fields:
        if version in field.nullable and not field.type.startswith("[]"):
            return b"\xff" if value is None else b"\1" + write_fields(field.fields, value, version, compact)
        return write_fields(field.fields, value, version, compact)
    match kind:
        case "string":
            return text(value, compact)
        case "bytes" | "records":
            return sized(value, compact)
        case "bool":
            return b"\1" if value else b"\0"
        case "uuid":
            return value.bytes
        case _:
            return struct.pack(NUMBERS[kind], value)


def write_fields(fields, values, version, compact):
    unknown = values.keys() - {field.name for field in fields}
    assert not unknown, f"no such field: {unknown}"
    out, tags = [], {}
    for field in fields:
        given = values.get(field.name, field.default)
        if version not in field.versions:
            assert field.name not in values, f"version {version} has no field {field.name}"
        elif version in field.tagged:
            if field.name in values:
                tags[field.tag] = write_value(field.type, field, given, version)
        else:
            out.append(write_value(field.type, field, given, version))
    if compact:
        out.append(varint(len(tags)))
        out += [varint(tag) + varint(len(data)) + data for tag, data in sorted(tags.items())]
    return b"".join(out)


class Reader:
    """Takes an answer apart."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        assert 0 <= count <= len(self.data) - self.at, "the answer ends too early"
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, kind):
        return struct.unpack(NUMBERS[kind], self.take(struct.calcsize(NUMBERS[kind])))[0]

    def varint(self):
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def length(self, compact, kind="int32"):
        return self.varint() - 1 if compact else self.number(kind)

    def value(self, kind, field, version):
        compact = version in field.flexible
        if kind.startswith("[]"):
            length = self.length(compact)
            return None if length < 0 else [self.value(kind[2:], field, version) for _ in range(length)]
        if field.fields:
            if version in field.nullable and not field.type.startswith("[]") and self.number("int8") < 0:
                return None
            return self.fields(field.fields, version, compact)
        match kind:
            case "string":
                length = self.length(compact, "int16")
                return None if length < 0 else self.take(length).decode()
            case "bytes" | "records":
                length = self.length(compact)
                return None if length < 0 else bytes(self.take(length))
            case "bool":
                return self.take(1) != b"\0"
            case "uuid":
                return uuid.UUID(bytes=bytes(self.take(16)))
            case _:
                return self.number(kind)

    def fields(self, fields, version, compact):
        values = {}
        tagged = {}
        for field in fields:
            if version not in field.versions:
                continue
            if version in field.tagged:
                tagged[field.tag] = field
                values[field.name] = field.default
            else:
                values[field.name] = self.value(field.type, field, version)
        for _ in range(self.varint() if compact else 0):
            tag, size = self.varint(), self.varint()
            end = self.at + size
            if tag in tagged:
                values[tagged[tag].name] = self.value(tagged[tag].type, tagged[tag], version)
            else:
                values[f"unknownTag{tag}"] = bytes(self.take(size))
            assert self.at == end, f"tag {tag} is not as long as it says"
        return values


class Connection:
    """One connection to a broker, with one request under way at a time unless `send` and `receive` are called apart."""

    def __init__(self, schemas, address):
        self.schemas = schemas
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = 0
        self.waiting = []

    def send(self, api, version, body, client="oracle"):
        """Sends a request. `body` is the fields that are not as by default, or bytes."""
        message = self.schemas.message(f"{api}Request")
        flexible = version in message.flexible
        self.sent += 1
        head = struct.pack(">hhi", message.key, version, self.sent) + text(client, False) + (b"\0" if flexible else b"")
        data = body if isinstance(body, bytes) else write_fields(message.fields, body, version, flexible)
        self.waiting.append((self.sent, api, version))
        try:
            self.socket.sendall(struct.pack(">i", len(head) + len(data)) + head + data)
        except OSError as error:
            raise Closed from error

    def receive(self):
        """The fields of the next answer."""
        number, api, version = self.waiting.pop(0)
        r = Reader(self.exactly(struct.unpack(">i", self.exactly(4))[0]))
        message = self.schemas.message(f"{api}Response")
        got = r.number("int32")
        assert got == number, f"answer {got} came instead of {number}"
        flexible = version in message.flexible
        if flexible and api != "ApiVersions":
            assert r.varint() == 0, "the answer's header has tags"
        values = r.fields(message.fields, version, flexible)
        assert r.at == len(r.data), f"{len(r.data) - r.at} bytes too many in an answer to {api} {version}"
        return values

    def exactly(self, count):
        data = bytearray()
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionError as error:
                raise Closed from error
            if not more:
                raise Closed
            data += more
        return bytes(data)

    def close(self):
        self.socket.close()
