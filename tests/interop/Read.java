import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads records with Kafka's own consumer and read_committed. Prints each as `record`, partition, offset, timestamp, key,
 * value, headers (`name=value`, joined by commas), separated by tabs, bytes in hexadecimal or `null`; then `committed` and
 * the group's offset of partition 0. Arguments: bootstrap servers, topic, group, number of partitions, number of records. */
public class Read {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "group.id", arguments[2],
            "enable.auto.commit", false, "isolation.level", "read_committed");
        List<TopicPartition> partitions = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(arguments[3]); i++) partitions.add(new TopicPartition(arguments[1], i));
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            for (int left = Integer.parseInt(arguments[4]); left > 0; )
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    List<String> headers = new ArrayList<>();
                    for (var header : record.headers())
                        headers.add(hex(header.key().getBytes(java.nio.charset.StandardCharsets.UTF_8)) + "=" + hex(header.value()));
                    System.out.println(String.join("\t", "record", "" + record.partition(), "" + record.offset(),
                        "" + record.timestamp(), hex(record.key()), hex(record.value()), String.join(",", headers)));
                    left--;
                }
            var first = partitions.get(0);
            System.out.println("committed\t" + consumer.committed(Set.of(first)).get(first).offset());
        }
    }

    static String hex(byte[] bytes) {
        return bytes == null ? "null" : HexFormat.of().formatHex(bytes);
    }
}
