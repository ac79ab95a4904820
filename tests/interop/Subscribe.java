import java.time.Duration;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Subscribes by a regular expression that the broker matches (KIP-848), and prints the topics of the records, sorted.
 * Arguments: bootstrap servers, group, regular expression, number of topics to wait for. */
public class Subscribe {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "group.id", arguments[1],
            "group.protocol", "consumer", "auto.offset.reset", "earliest");
        var topics = new TreeSet<String>();
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(new SubscriptionPattern(arguments[2]));
            while (topics.size() < Integer.parseInt(arguments[3]))
                for (var record : consumer.poll(Duration.ofMillis(100))) topics.add(record.topic());
        }
        topics.forEach(System.out::println);
    }
}
