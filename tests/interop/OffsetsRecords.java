import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters;

/** Reads a partition of __consumer_offsets with Kafka's own consumer and decodes its records with Kafka's own classes. Prints
 * a line of JSON for each record: whether Kafka would write the same bytes, the record's type, the version of its value,
 * and every field of key and value. Arguments: bootstrap servers, partition, number of records. */
public class OffsetsRecords {
    public static void main(String[] arguments) {
        var partition = new TopicPartition("__consumer_offsets", Integer.parseInt(arguments[1]));
        Map<String, Object> reading = Map.of("bootstrap.servers", arguments[0], "isolation.level", "read_committed");
        var serde = new GroupCoordinatorRecordSerde();
        try (var consumer = new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            for (int left = Integer.parseInt(arguments[2]); left > 0; )
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    ByteBuffer value = record.value() == null ? null : ByteBuffer.wrap(record.value());
                    CoordinatorRecord read = serde.deserialize(ByteBuffer.wrap(record.key()), value);
                    boolean same = Arrays.equals(serde.serializeKey(read), record.key())
                        && Arrays.equals(serde.serializeValue(read), record.value());
                    var json = read.value() == null ? null : CoordinatorRecordJsonConverters
                        .writeRecordValueAsJson(read.value().message(), read.value().version());
                    System.out.printf("{\"same\": %b, \"type\": %d, \"version\": %d, \"key\": %s, \"value\": %s}%n",
                        same, read.key().apiKey(), read.value() == null ? -1 : read.value().version(),
                        CoordinatorRecordJsonConverters.writeRecordKeyAsJson(read.key()), json);
                    left--;
                }
        }
    }
}
