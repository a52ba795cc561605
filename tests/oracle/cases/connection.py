"""What a connection bears: requests that are unknown or cut, pipelining, and the versions that are told."""

from cases.asking import topic
from wire import Closed


def supported(t):
    names = t.schemas.requests()
    for version in range(5):
        named = {"clientSoftwareName": "oracle", "clientSoftwareVersion": "1"} if version >= 3 else {}
        answer = t.ask("ApiVersions", version, **named)
        keys = {names[each["apiKey"]]: f"{each['minVersion']}-{each['maxVersion']}" for each in answer.pop("apiKeys")}
        supported = {each["name"]: f"{each['minVersion']}-{each['maxVersion']}" for each in answer.pop("supportedFeatures", [])}
        chosen = {each["name"]: each["maxVersionLevel"] for each in answer.pop("finalizedFeatures", [])}
        t.say(f"version {version}", answer)
        if version == 4:
            t.say("request", keys)
            t.say("feature there is", supported)
            t.say("feature chosen", chosen)
    for what, name in {"no name": "", "odd name": "a b"}.items():
        answer = t.ask("ApiVersions", 3, clientSoftwareName=name, clientSoftwareVersion="1")
        t.say(what, {"errorCode": answer["errorCode"]})


def too_new(t):
    where = t.connect()
    where.send("ApiVersions", 90, b"")
    # Whatever was asked for, the answer is one of version 0.
    number, api, _ = where.waiting.pop()
    where.waiting.append((number, api, 0))
    answer = where.receive()
    t.say("answer", {"errorCode": answer["errorCode"], "keys": [each for each in answer["apiKeys"] if each["apiKey"] == 18]})


def cut(t):
    for what, api, version, body in [
        ("nothing", "Metadata", 12, b""),
        ("a list that is too long", "Metadata", 1, b"\x7f\xff\xff\xff"),
        ("too new", "Metadata", 99, b"\0" * 20),
        ("too old", "Fetch", 0, b"\0" * 30),
        ("of negative version", "Metadata", -1, b"\0" * 20),
        ("bytes behind", "Metadata", 1, b"\0\0\0\0more"),
    ]:
        where = t.connect()
        where.send(api, version, body)
        try:
            answer = where.receive()
        except Closed:
            answer = {"connection": "closed"}
        t.say(what, "answered" if "brokers" in answer else answer)


def in_order(t):
    topic(t, "in-order")
    where = t.connect()
    parts = [{"topic": "in-order", "partitions": [{"fetchOffset": 0, "partitionMaxBytes": 1000}]}]
    where.send("Fetch", 12, {"maxWaitMs": 200, "minBytes": 1, "maxBytes": 1000, "topics": parts})
    where.send("Metadata", 12, {"topics": []})
    where.send("ApiVersions", 0, {})
    t.say("first", where.receive())
    t.say("second", {"errors": where.receive()["brokers"] == []})
    t.say("third", {"errorCode": where.receive()["errorCode"]})
