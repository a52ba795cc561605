//! Transactions by real clients: what is committed is seen, nothing that was aborted or is open; older producers are fenced. Over three brokers
//! a transaction's coordinator, its partitions' leaders and its group's coordinator are different ones.

use crate::kafka::programs::{Program, promises};

promises! {
    confluent_kafka_commits_and_aborts_and_moves_a_group_and_is_fenced:
        Program::Python("transactions.py"), ["@"], "4 checks held";
    aiokafka_and_kafka_python_commit_and_abort_and_are_fenced:
        Program::Python("transactions_python.py"), ["@"], "aiokafka and kafka-python held";
    kafkajs_commits_and_aborts_and_is_fenced:
        Program::KafkaJs("transactions.js"), ["@"], "transactions hold";
    franz_go_commits_and_aborts_and_is_fenced:
        Program::Go, ["franz", "@", "transactions"], "transactions hold";
    sarama_commits_and_aborts_and_is_fenced:
        Program::Go, ["sarama", "@", "transactions"], "transactions hold";
    // Transactions V2: it sees by the features that it may, and is given an epoch for each transaction.
    java_commits_and_aborts_and_is_fenced_and_its_admin_client_aborts_what_hangs:
        Program::Java("Transactions.java"), ["@"], "the Java client held";
}
