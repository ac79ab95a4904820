import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes four transactions with Kafka's own producer, every second one aborted, each with an offset; then prints what
 * Kafka's own consumer reads. Arguments: bootstrap servers, topic, number of committed records. */
public class Transactions {
    public static void main(String[] arguments) {
        String servers = arguments[0], topic = arguments[1];
        Map<String, Object> writing = Map.of("bootstrap.servers", servers, "transactional.id", "java");
        try (var producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (int i = 0; i < 4; i++) {
                producer.beginTransaction();
                for (int n = 0; n < 3; n++)
                    producer.send(new ProducerRecord<>(topic, n % 2, null, i % 2 == 0 ? "c" + (i / 2 * 3 + n) : "lost"));
                var offsets = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(i + 1));
                producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata("theirs"));
                producer.flush();
                if (i % 2 == 0) producer.commitTransaction(); else producer.abortTransaction();
            }
            producer.beginTransaction();
            producer.abortTransaction();
        }
        Map<String, Object> reading = Map.of("bootstrap.servers", servers, "group.id", "java",
            "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        try (var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int left = Integer.parseInt(arguments[2]); left > 0; )
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(record.value());
                    left--;
                }
        }
    }
}
