//! What clients send comes back as it was, with every codec that they have, with idempotent producers, by time and large; and what their
//! admin clients do to topics and settings holds.

use super::programs::{Program, promises};

promises! {
    confluent_kafka_gets_back_what_it_sent:
        Program::Python("confluent.py"), ["@", "--large"], "10000 records there and back";
    confluent_kafka_looks_after_topics_and_their_settings:
        Program::Python("topics_confluent.py"), ["@"], "topics and settings hold";
    kafka_python_gets_back_what_it_sent:
        Program::Python("round_python.py"), ["@", "records"], "records hold";
    kafka_python_looks_after_topics_and_their_settings:
        Program::Python("round_python.py"), ["@", "topics"], "topics hold";
    aiokafka_gets_back_what_it_sent:
        Program::Python("round_aiokafka.py"), ["@", "records"], "records hold";
    aiokafka_looks_after_topics_and_their_settings:
        Program::Python("round_aiokafka.py"), ["@", "topics"], "topics hold";
    kafkajs_gets_back_what_it_sent:
        Program::KafkaJs("round.js"), ["@", "records"], "records hold";
    kafkajs_looks_after_topics_and_their_settings:
        Program::KafkaJs("round.js"), ["@", "topics"], "topics hold";
    franz_go_gets_back_what_it_sent:
        Program::Go, ["franz", "@", "records"], "records hold";
    franz_go_looks_after_topics_and_their_settings:
        Program::Go, ["franz", "@", "topics"], "topics hold";
    sarama_gets_back_what_it_sent:
        Program::Go, ["sarama", "@", "records"], "records hold";
    sarama_looks_after_topics_and_their_settings:
        Program::Go, ["sarama", "@", "topics"], "topics hold";
    java_gets_back_what_it_sent:
        Program::Java("Round.java"), ["@", "records"], "records hold";
    java_looks_after_topics_and_their_settings:
        Program::Java("Round.java"), ["@", "topics"], "topics hold";
}
