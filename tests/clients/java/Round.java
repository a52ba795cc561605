// Round trips and the admin client of the Java client, one promise a run.
//
// java -cp JARS Round.java BOOTSTRAP records|topics. Ends 0 only if the promise held, and says so in one line.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

public class Round {
    static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    static final int PARTITIONS = 3;
    static final int RECORDS = 300;
    static final long FIRST_TIME = 1_700_000_000_000L;
    static final int LARGE = 3 << 20;
    static final long TIMEOUT_S = 60;

    static String bootstrap;

    static void expect(String what, Object got, Object wanted) {
        if (!got.equals(wanted)) {
            throw new AssertionError(what + ": got " + got + ", wanted " + wanted);
        }
    }

    interface Question {
        Object ask() throws Exception;
    }

    /** Asks until it is so: brokers learn a little later of what another has done. */
    static void settles(String what, Question question, Object wanted) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
        Object got = question.ask();
        while (!got.equals(wanted) && System.nanoTime() < deadline) {
            got = question.ask();
        }
        expect(what, got, wanted);
    }

    static <T> T done(Future<T> future) throws Exception {
        return future.get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    static String refusal(Future<?> future) throws Exception {
        try {
            done(future);
        } catch (ExecutionException refused) {
            return refused.getCause().getClass().getSimpleName();
        }
        return "none";
    }

    static Properties config(String... more) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < more.length; i += 2) {
            config.put(more[i], more[i + 1]);
        }
        return config;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** A record by its number: null and empty keys, values and headers are among them. */
    static ProducerRecord<byte[], byte[]> some(String topic, int number) {
        byte[] key = new byte[][] {null, {}, bytes("key-" + number)}[number % 3];
        byte[] full = bytes(("value " + number + " ").repeat(20));
        byte[] value = new byte[][] {full, {}, null}[number % 7 != 0 ? 0 : number / 7 % 3];
        List<Header> headers = number % 5 != 0 ? List.of() : List.of(
            new RecordHeader("h", bytes("1")), new RecordHeader("h", (byte[]) null), new RecordHeader("", new byte[0]));
        return new ProducerRecord<>(topic, number % PARTITIONS, FIRST_TIME + number, key, value, headers);
    }

    static String shown(byte[] key, byte[] value, long time, Iterable<Header> headers) {
        StringBuilder shown = new StringBuilder(Arrays.toString(key)).append(Arrays.hashCode(value)).append(value == null).append(time);
        headers.forEach(header -> shown.append(header.key()).append(Arrays.toString(header.value())));
        return shown.toString();
    }

    static Set<TopicPartition> partitions(String topic) {
        return IntStream.range(0, PARTITIONS).mapToObj(partition -> new TopicPartition(topic, partition)).collect(Collectors.toSet());
    }

    static void roundTrip(String topic, List<ProducerRecord<byte[], byte[]>> sent, String... more) throws Exception {
        String serializer = "org.apache.kafka.common.serialization.ByteArraySerializer";
        Properties config = config(more);
        config.put("key.serializer", serializer);
        config.put("value.serializer", serializer);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
            var deliveries = new ArrayList<Future<RecordMetadata>>();
            sent.forEach(record -> deliveries.add(producer.send(record)));
            for (int number = 0; number < sent.size(); number++) {
                expect("offset", done(deliveries.get(number)).offset(), (long) number / PARTITIONS);
            }
        }
        String deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        Properties reading = config("key.deserializer", deserializer, "value.deserializer", deserializer, "auto.offset.reset", "earliest",
            // A question on the same connection waits behind a fetch that waits for records.
            "fetch.max.wait.ms", "20");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(reading)) {
            consumer.assign(partitions(topic));
            var got = new HashMap<Integer, List<ConsumerRecord<byte[], byte[]>>>();
            partitions(topic).forEach(partition -> got.put(partition.partition(), new ArrayList<>()));
            int came = 0;
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
            while (came < sent.size() && System.nanoTime() < deadline) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    got.get(record.partition()).add(record);
                    came++;
                }
            }
            expect("records of " + topic, came, sent.size());
            for (int number = 0; number < sent.size(); number++) {
                var wanted = sent.get(number);
                var found = got.get(wanted.partition()).get(number / PARTITIONS);
                expect("record " + number + " of " + topic,
                    shown(found.key(), found.value(), found.timestamp(), found.headers()),
                    shown(wanted.key(), wanted.value(), wanted.timestamp(), wanted.headers()));
            }
            for (TopicPartition partition : partitions(topic)) {
                var here = got.get(partition.partition());
                for (long time : List.of(FIRST_TIME + sent.size() / 2, FIRST_TIME + sent.size())) {
                    long first = here.stream().takeWhile(record -> record.timestamp() < time).count();
                    var wanted = first < here.size() ? Optional.of(first) : Optional.empty();
                    var found = Optional.ofNullable(consumer.offsetsForTimes(Map.of(partition, time)).get(partition));
                    expect("by time", found.map(OffsetAndTimestamp::offset), wanted);
                }
            }
        }
    }

    static void records() throws Exception {
        try (Admin admin = Admin.create(config())) {
            for (String codec : CODECS) {
                for (String idempotent : List.of("false", "true")) {
                    String topic = codec + "-" + idempotent;
                    done(admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) -1))).all());
                    var sent = new ArrayList<ProducerRecord<byte[], byte[]>>();
                    for (int number = 0; number < RECORDS; number++) {
                        sent.add(some(topic, number));
                    }
                    roundTrip(topic, sent, "compression.type", codec, "enable.idempotence", idempotent, "linger.ms", "5");
                }
            }
            NewTopic large = new NewTopic("large", PARTITIONS, (short) -1).configs(Map.of("max.message.bytes", Integer.toString(2 * LARGE)));
            done(admin.createTopics(List.of(large)).all());
        }
        byte[] value = new byte[LARGE];
        new Random(7).nextBytes(value);
        roundTrip("large", List.of(new ProducerRecord<>("large", 0, FIRST_TIME, null, value)),
            "max.request.size", Integer.toString(2 * LARGE), "buffer.memory", Integer.toString(8 * LARGE));
    }

    static Config described(Admin admin, ConfigResource resource) throws Exception {
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        return done(admin.describeConfigs(List.of(resource), options).all()).get(resource);
    }

    static Future<Void> alter(Admin admin, ConfigResource resource, String name, OpType operation, String value) {
        var change = new AlterConfigOp(new ConfigEntry(name, value), operation);
        return admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all();
    }

    static void configs(Admin admin, String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        settles("set", () -> described(admin, resource).get("retention.ms").value(), "1000");
        ConfigEntry set = described(admin, resource).get("retention.ms");
        expect("value", set.value() + set.source() + set.type() + set.isReadOnly(), "1000DYNAMIC_TOPIC_CONFIGLONGfalse");
        var synonyms = new ArrayList<String>();
        set.synonyms().forEach(synonym -> synonyms.add(synonym.name() + " " + synonym.source()));
        expect("synonyms", synonyms, List.of("retention.ms DYNAMIC_TOPIC_CONFIG", "log.retention.ms DEFAULT_CONFIG"));
        expect("documented", set.documentation().isEmpty(), false);
        done(alter(admin, resource, "retention.ms", OpType.DELETE, null));
        done(alter(admin, resource, "cleanup.policy", OpType.APPEND, "compact"));
        settles("appended", () -> described(admin, resource).get("cleanup.policy").value(), "delete,compact");
        done(alter(admin, resource, "cleanup.policy", OpType.SUBTRACT, "compact"));
        settles("subtracted", () -> described(admin, resource).get("cleanup.policy").value(), "delete");
        Config now = described(admin, resource);
        expect("unset", now.get("retention.ms").value() + now.get("retention.ms").isDefault(), "604800000true");
        expect("bad value", refusal(alter(admin, resource, "segment.ms", OpType.SET, "x")), "InvalidConfigurationException");
        ConfigResource absent = new ConfigResource(ConfigResource.Type.TOPIC, "absent");
        expect("no topic", refusal(alter(admin, absent, "segment.ms", OpType.SET, "1")), "UnknownTopicOrPartitionException");
        String id = done(admin.describeCluster().nodes()).iterator().next().idString();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, id);
        ConfigEntry number = described(admin, broker).get("node.id");
        expect("broker", number.value() + number.source() + number.isReadOnly(), id + "STATIC_BROKER_CONFIGtrue");
        expect("altering a broker", refusal(alter(admin, broker, "num.partitions", OpType.SET, "3")), "InvalidRequestException");
    }

    static void topics() throws Exception {
        String topic = "looked-after";
        try (Admin admin = Admin.create(config())) {
            var brokers = done(admin.describeCluster().nodes()).stream().map(Node::id).collect(Collectors.toCollection(TreeSet::new));
            var made = admin.createTopics(List.of(new NewTopic(topic, 1, (short) -1).configs(Map.of("retention.ms", "1000"))));
            expect("made", done(made.numPartitions(topic)) + " " + done(made.replicationFactor(topic)), "1 " + brokers.size());
            expect("made with", done(made.config(topic)).get("retention.ms").value(), "1000");
            configs(admin, topic);
            done(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(PARTITIONS))).all());
            expect("same", refusal(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(PARTITIONS))).all()), "InvalidPartitionsException");
            settles("grown", () -> done(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size(), PARTITIONS);
            var grown = done(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions();
            expect("leaders", grown.stream().map(partition -> partition.leader().id()).collect(Collectors.toCollection(TreeSet::new)), brokers);
            var sent = new ArrayList<ProducerRecord<byte[], byte[]>>();
            for (int number = 0; number < 10 * PARTITIONS; number++) {
                sent.add(some(topic, number));
            }
            roundTrip(topic, sent);
            TopicPartition first = new TopicPartition(topic, 0);
            var deleted = admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4)));
            expect("cut", done(deleted.lowWatermarks().get(first)).lowWatermark(), 4L);
            expect("beyond", refusal(admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(11))).all()), "OffsetOutOfRangeException");
            expect("earliest", done(admin.listOffsets(Map.of(first, OffsetSpec.earliest())).all()).get(first).offset(), 4L);

            var elected = done(admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions());
            expect("election", elected.get(first).get().getClass().getSimpleName(), "ElectionNotNeededException");
            expect("elections", done(admin.electLeaders(ElectionType.PREFERRED, null).partitions()).size(), 0);
            var stays = Optional.of(new NewPartitionReassignment(grown.get(0).replicas().stream().map(Node::id).collect(Collectors.toList())));
            done(admin.alterPartitionReassignments(Map.of(first, stays)).all());
            var away = Optional.of(new NewPartitionReassignment(List.of(77)));
            expect("away", refusal(admin.alterPartitionReassignments(Map.of(first, away)).all()), "InvalidReplicaAssignmentException");
            expect("given up", refusal(admin.alterPartitionReassignments(Map.of(first, Optional.empty())).all()), "NoReassignmentInProgressException");
            expect("moves", done(admin.listPartitionReassignments().reassignments()).size(), 0);
            for (var dirs : done(admin.describeLogDirs(brokers).allDescriptions()).values()) {
                var held = new HashSet<TopicPartition>();
                dirs.values().forEach(dir -> held.addAll(dir.replicaInfos().keySet()));
                expect("on disk", held, partitions(topic));
                dirs.values().forEach(dir -> expect("disk", dir.totalBytes().isPresent() && dir.usableBytes().isPresent(), true));
            }
            done(admin.deleteTopics(List.of(topic)).all());
            settles("topics", () -> done(admin.listTopics().names()), Set.of());
        }
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        switch (arguments[1]) {
            case "records" -> records();
            case "topics" -> topics();
            default -> throw new IllegalArgumentException("no promise " + arguments[1]);
        }
        System.out.println(arguments[1] + " hold");
        System.exit(0);
    }
}
