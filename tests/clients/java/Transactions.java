// Transactions with the Java client, which has transactions V2 (KIP-890): commit, abort, offsets inside, fencing, and what operators do.
//
// java -cp JARS Transactions.java BOOTSTRAP. Ends 0 only if every check held.

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    static final String TOPIC = "java";
    static final String GROUP = "java-group";
    static final TopicPartition PLACE = new TopicPartition(TOPIC, 0);
    static final int PARTITIONS = 3;
    static final int ROUNDS = 6;
    static String bootstrap;

    static void expect(String what, Object got, Object wanted) {
        if (!got.equals(wanted)) {
            throw new AssertionError(what + ": got " + got + ", wanted " + wanted);
        }
    }

    static Properties properties(Map<String, String> more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.putAll(more);
        return properties;
    }

    static KafkaProducer<String, String> producer(String id) {
        Properties properties = properties(Map.of("transactional.id", id));
        KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    static KafkaConsumer<String, String> consumer(String isolation) {
        Properties properties = properties(
                Map.of("isolation.level", isolation, "group.id", GROUP, "enable.auto.commit", "false"));
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    static List<List<String>> none() {
        List<List<String>> values = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            values.add(new ArrayList<>());
        }
        return values;
    }

    /** Every value up to the end that the isolation has, by partition. */
    static List<List<String>> read(String isolation) {
        List<List<String>> values = none();
        List<TopicPartition> places = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            places.add(new TopicPartition(TOPIC, partition));
        }
        try (KafkaConsumer<String, String> consumer = consumer(isolation)) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            while (places.stream().anyMatch(place -> consumer.position(place) < ends.get(place))) {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> values.get(record.partition()).add(record.value()));
            }
        }
        return values;
    }

    static void rounds(Admin admin) throws Exception {
        List<List<String>> all = none();
        List<List<String>> committed = none();
        try (KafkaProducer<String, String> producer = producer("rounds");
                KafkaConsumer<String, String> member = consumer("read_committed")) {
            for (int round = 0; round < ROUNDS; round++) {
                boolean aborts = round % 3 == 1;
                producer.beginTransaction();
                for (int record = 0; record < 5; record++) {
                    String value = round + "-" + record;
                    int partition = record % PARTITIONS;
                    producer.send(new ProducerRecord<>(TOPIC, partition, null, value));
                    all.get(partition).add(value);
                    if (!aborts) {
                        committed.get(partition).add(value);
                    }
                }
                Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(PLACE, new OffsetAndMetadata(round + 1));
                producer.sendOffsetsToTransaction(offsets, member.groupMetadata());
                if (aborts) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        expect("read_committed", read("read_committed"), committed);
        expect("read_uncommitted", read("read_uncommitted"), all);
        try (KafkaConsumer<String, String> consumer = consumer("read_committed")) {
            long offset = consumer.committed(Set.of(PLACE)).get(PLACE).offset();
            expect("offsets", offset, (long) ROUNDS);
        }
        TransactionDescription described =
                admin.describeTransactions(List.of("rounds")).description("rounds").get();
        // An epoch for each transaction is how transactions V2 are told from the first version.
        expect("an epoch per transaction", described.producerEpoch() >= ROUNDS, true);
        short level = admin.describeFeatures().featureMetadata().get().finalizedFeatures()
                .get("transaction.version").maxVersionLevel();
        expect("transaction.version", level, (short) 2);
    }

    static void fence() {
        KafkaProducer<String, String> older = producer("twice");
        older.beginTransaction();
        older.send(new ProducerRecord<>(TOPIC, 0, null, "of the older"));
        older.flush();
        KafkaProducer<String, String> newer = producer("twice");
        newer.beginTransaction();
        newer.send(new ProducerRecord<>(TOPIC, 0, null, "of the newer"));
        newer.commitTransaction();
        try {
            older.commitTransaction();
            throw new AssertionError("the older producer committed");
        } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
            older.close(Duration.ZERO);
        }
        newer.close();
        List<String> seen = read("read_committed").get(0);
        expect("after the fence", seen.get(seen.size() - 1), "of the newer");
        expect("of the older", seen.contains("of the older"), false);
    }

    static void hanging(Admin admin) throws Exception {
        KafkaProducer<String, String> producer = producer("hangs");
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(TOPIC, 0, null, "hangs"));
        producer.flush();
        ProducerState open = null;
        for (ProducerState state :
                admin.describeProducers(List.of(PLACE)).partitionResult(PLACE).get().activeProducers()) {
            if (state.currentTransactionStartOffset().isPresent()) {
                open = state;
            }
        }
        expect("listed", admin.listTransactions().all().get().stream()
                .anyMatch(listing -> listing.transactionalId().equals("hangs")), true);
        long before;
        try (KafkaConsumer<String, String> consumer = consumer("read_committed")) {
            before = consumer.endOffsets(List.of(PLACE)).get(PLACE);
            expect("held at", before, open.currentTransactionStartOffset().getAsLong());
            admin.abortTransaction(new AbortTransactionSpec(
                    PLACE, open.producerId(), (short) open.producerEpoch(), open.coordinatorEpoch().orElse(0)))
                    .all().get();
            long after = consumer.endOffsets(List.of(PLACE)).get(PLACE);
            expect("let go", after, before + 2);
        }
        producer.close(Duration.ZERO);
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        try (Admin admin = Admin.create(properties(Map.of()))) {
            admin.createTopics(List.of(new NewTopic(TOPIC, PARTITIONS, (short) -1))).all().get();
            rounds(admin);
            fence();
            hanging(admin);
        }
        System.out.println("the Java client held");
    }
}
