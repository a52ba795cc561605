// A compacted log from its first record to its end, committed records alone, by the Java client.
//
// java -cp JARS Compacted.java BOOTSTRAP TOPIC. Prints each record of partition 0 as `OFFSET KEY VALUE TIME`, NULL for what is null, between
// tabs; then `end OFFSET`, where the client stands once it is at the end of the log.

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

public class Compacted {
    static final long TIMEOUT_S = 60;

    public static void main(String[] arguments) {
        String deserializer = "org.apache.kafka.common.serialization.StringDeserializer";
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("key.deserializer", deserializer);
        config.put("value.deserializer", deserializer);
        config.put("auto.offset.reset", "earliest");
        config.put("isolation.level", "read_committed");
        config.put("fetch.max.wait.ms", "20");
        TopicPartition place = new TopicPartition(arguments[1], 0);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config)) {
            consumer.assign(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
            while (consumer.position(place) < end) {
                if (System.nanoTime() > deadline) {
                    throw new AssertionError("still at " + consumer.position(place) + ", and the log ends at " + end);
                }
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    String value = record.value() == null ? "NULL" : record.value();
                    System.out.println(record.offset() + "\t" + record.key() + "\t" + value + "\t" + record.timestamp());
                }
            }
            System.out.println("end " + consumer.position(place));
        }
    }
}
