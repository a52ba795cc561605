// Groups with the Java client, one capability a run.
//
// java -cp JARS Groups.java BOOTSTRAP CAPABILITY classic|consumer. Ends 0 only if what the capability promises held, and says so in one line.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

public class Groups {
    static final int PARTITIONS = 4;
    static final int RECORDS = 400;
    static final long TIMEOUT_S = 60;
    static final String GROUP = "members";

    static String bootstrap;
    static String protocol;

    static void expect(String what, Object got, Object wanted) {
        if (!got.equals(wanted)) {
            throw new AssertionError(what + ": got " + got + ", wanted " + wanted);
        }
    }

    static void until(String what, BooleanSupplier holds, Member... members) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
        while (!holds.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                List<Set<Integer>> owned = Arrays.stream(members).map(member -> member.owned).collect(Collectors.toList());
                throw new AssertionError(what + " did not come about; members own " + owned);
            }
            for (Member member : members) {
                member.poll();
            }
        }
    }

    static <T> T done(org.apache.kafka.common.KafkaFuture<T> future) throws Exception {
        return future.get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    static void create(Admin admin, String topic) throws Exception {
        done(admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) -1))).all());
    }

    static void produce(String topic, int from, int to) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        config.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config)) {
            var sent = new ArrayList<java.util.concurrent.Future<?>>();
            for (int number = from; number < to; number++) {
                sent.add(producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, Integer.toString(number))));
            }
            for (var delivery : sent) {
                delivery.get(TIMEOUT_S, TimeUnit.SECONDS);
            }
        }
    }

    static List<Integer> numbers(int from, int to) {
        return IntStream.range(from, to).boxed().collect(Collectors.toList());
    }

    static Set<Integer> all() {
        return new TreeSet<>(numbers(0, PARTITIONS));
    }

    /** A consumer that keeps account of what it owns and has read. Commits only when told to. */
    static class Member implements ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        final Set<Integer> owned = new TreeSet<>();
        final Set<Integer> taken = new TreeSet<>();
        final List<Integer> read = new ArrayList<>();
        final Map<Integer, Long> next = new HashMap<>();
        int events;

        Member(String topic, String... more) {
            Properties config = new Properties();
            config.put("bootstrap.servers", bootstrap);
            config.put("group.id", GROUP);
            config.put("group.protocol", protocol);
            config.put("auto.offset.reset", "earliest");
            config.put("enable.auto.commit", "false");
            config.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            config.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            if (protocol.equals("classic")) {
                config.put("session.timeout.ms", "10000");
                config.put("heartbeat.interval.ms", "500");
            }
            for (int i = 0; i < more.length; i += 2) {
                config.put(more[i], more[i + 1]);
            }
            consumer = new KafkaConsumer<>(config);
            consumer.subscribe(List.of(topic), this);
        }

        static Set<Integer> indexes(Collection<TopicPartition> partitions) {
            return partitions.stream().map(TopicPartition::partition).collect(Collectors.toSet());
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            events += partitions.isEmpty() ? 0 : 1;
            owned.addAll(indexes(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            events += partitions.isEmpty() ? 0 : 1;
            owned.removeAll(indexes(partitions));
            taken.addAll(indexes(partitions));
        }

        void poll() {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                read.add(Integer.parseInt(record.value()));
                next.put(record.partition(), record.offset() + 1);
            }
        }

        /** Whether it has read so far in every partition that it owns. */
        boolean hasRead(long offset) {
            return owned.stream().allMatch(partition -> next.getOrDefault(partition, 0L) == offset);
        }

        void close() {
            consumer.close();
        }
    }

    static List<Integer> sorted(List<Integer> a, List<Integer> b) {
        var all = new ArrayList<>(a);
        all.addAll(b);
        all.sort(null);
        return all;
    }

    /** Two members share the partitions; what one has committed when it leaves is not read again by the other. */
    static void share() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            create(admin, "shared");
        }
        produce("shared", 0, RECORDS);
        Member a = new Member("shared");
        Member b = new Member("shared");
        until("a fair share", () -> a.owned.size() == 2 && b.owned.size() == 2, a, b);
        // What was read before the other came is read again: it was not committed.
        until("all records", () -> a.hasRead(RECORDS / PARTITIONS) && b.hasRead(RECORDS / PARTITIONS), a, b);
        expect("records", new HashSet<>(sorted(a.read, b.read)).size(), RECORDS);
        a.consumer.commitSync();
        b.consumer.commitSync();
        b.close();
        until("all partitions", () -> a.owned.equals(all()), a);
        int before = a.read.size();
        produce("shared", RECORDS, 2 * RECORDS);
        until("new records", () -> a.read.size() - before >= RECORDS, a);
        expect("records", sorted(a.read.subList(before, a.read.size()), List.of()), numbers(RECORDS, 2 * RECORDS));
        a.consumer.commitSync();
        a.close();
        Member c = new Member("shared");
        until("an assignment", () -> c.owned.equals(all()), c);
        produce("shared", 2 * RECORDS, 2 * RECORDS + 1);
        until("one record", () -> !c.read.isEmpty(), c);
        expect("what a later member reads", c.read, numbers(2 * RECORDS, 2 * RECORDS + 1));
        c.close();
    }

    /** A member that keeps some partitions never gives those up, when another comes and when it goes. */
    static void cooperative() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            create(admin, "sticky");
        }
        String[] config = protocol.equals("consumer")
            ? new String[0]
            : new String[] {"partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"};
        Member a = new Member("sticky", config);
        until("all partitions", () -> a.owned.equals(all()), a);
        Member b = new Member("sticky", config);
        until("a fair share", () -> a.owned.size() == 2 && b.owned.size() == 2, a, b);
        expect("what was given up", a.taken, b.owned);
        Set<Integer> kept = new TreeSet<>(a.owned);
        b.close();
        until("all partitions again", () -> a.owned.equals(all()), a);
        kept.retainAll(a.taken);
        expect("what was kept all the time and given up", kept, Set.of());
        a.close();
    }

    /** A static member that comes back within its session has what it had, and the other does not notice. */
    static void fixed() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            create(admin, "static");
        }
        Member a = new Member("static", "group.instance.id", "a");
        Member b = new Member("static", "group.instance.id", "b");
        until("a fair share", () -> a.owned.size() == 2 && b.owned.size() == 2, a, b);
        Set<Integer> had = new TreeSet<>(a.owned);
        int events = b.events;
        a.close();
        Member again = new Member("static", "group.instance.id", "a");
        until("an assignment", () -> !again.owned.isEmpty(), again, b);
        expect("what it has again", again.owned, had);
        expect("what the other noticed", b.events, events);
        again.close();
        b.close();
    }

    /** Groups are listed, described and deleted; their offsets are listed, altered and deleted while nobody is there. */
    static void admin() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            create(admin, "administered");
            produce("administered", 0, RECORDS);
            Member a = new Member("administered");
            until("all records", () -> a.read.size() == RECORDS, a);
            a.consumer.commitSync();
            var listed = done(admin.listGroups().all());
            expect("groups", listed.stream().map(group -> group.groupId()).collect(Collectors.toList()), List.of(GROUP));
            var listing = listed.iterator().next();
            expect("type", listing.type().orElseThrow().toString().toLowerCase(), protocol);
            expect("state", listing.groupState().orElseThrow().toString(), "Stable");
            var described = done(admin.describeConsumerGroups(List.of(GROUP)).all()).get(GROUP);
            expect("state", described.groupState().toString(), "Stable");
            expect("members", described.members().size(), 1);
            var member = described.members().iterator().next();
            expect("host", member.host(), "/127.0.0.1");
            expect("assigned", new TreeSet<>(Member.indexes(member.assignment().topicPartitions())), all());
            var one = new TopicPartition("administered", 1);
            var offsets = done(admin.listConsumerGroupOffsets(GROUP).partitionsToOffsetAndMetadata());
            expect("offsets", offsets.get(one).offset() + offsets.size(), (long) RECORDS / PARTITIONS + PARTITIONS);
            refused("altering", "UnknownMemberIdException", () -> done(admin.alterConsumerGroupOffsets(GROUP, Map.of(one, new OffsetAndMetadata(7))).all()));
            refused("deleting", "GroupNotEmptyException", () -> done(admin.deleteConsumerGroups(List.of(GROUP)).all()));
            refused("forgetting", "GroupSubscribedToTopicException", () -> done(admin.deleteConsumerGroupOffsets(GROUP, Set.of(one)).all()));
            a.close();
            done(admin.alterConsumerGroupOffsets(GROUP, Map.of(one, new OffsetAndMetadata(7, "why é"))).all());
            var altered = done(admin.listConsumerGroupOffsets(GROUP).partitionsToOffsetAndMetadata()).get(one);
            expect("altered", altered, new OffsetAndMetadata(7, "why é"));
            done(admin.deleteConsumerGroupOffsets(GROUP, Set.of(one)).all());
            var left = done(admin.listConsumerGroupOffsets(GROUP).partitionsToOffsetAndMetadata());
            expect("partitions with offsets", new TreeSet<>(Member.indexes(left.keySet())), Set.of(0, 2, 3));
            done(admin.deleteConsumerGroups(List.of(GROUP)).all());
            refused("describing", "GroupIdNotFoundException", () -> done(admin.describeConsumerGroups(List.of(GROUP)).all()));
            expect("groups", done(admin.listGroups().all()).size(), 0);
        }
    }

    interface Call {
        Object run() throws Exception;
    }

    static void refused(String what, String error, Call call) throws Exception {
        try {
            call.run();
        } catch (ExecutionException refused) {
            expect(what, refused.getCause().getClass().getSimpleName(), error);
            return;
        }
        throw new AssertionError(what + " was not refused");
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        protocol = arguments[2];
        switch (arguments[1]) {
            case "share" -> share();
            case "cooperative" -> cooperative();
            case "static" -> fixed();
            case "admin" -> admin();
            default -> throw new IllegalArgumentException(arguments[1]);
        }
        System.out.println(arguments[1] + " (" + protocol + ") holds");
        System.exit(0);
    }
}
