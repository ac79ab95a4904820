import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.HashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes records to partition 0 with Kafka's own producer; prints the offset or the error of each.
 * Arguments: topic, settings as name=value, then the numbers of records to write before each flush, joined by commas. */
public class Produce {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        for (int i = 1; i < arguments.length - 1; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        int number = 0;
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(arguments[0]);
            for (String count : arguments[arguments.length - 1].split(",")) {
                List<Future<RecordMetadata>> results = new ArrayList<>();
                for (int i = 0; i < Integer.parseInt(count); i++) {
                    byte[] value = new byte[100];
                    java.util.Arrays.fill(value, (byte) ('a' + number++ % 26));
                    var record = new ProducerRecord<byte[], byte[]>(arguments[0], 0, 1_700_000_000_000L, "key".getBytes(), value);
                    record.headers().add("name", "content".getBytes());
                    results.add(producer.send(record));
                }
                producer.flush();
                for (var result : results)
                    try {
                        System.out.println(result.get().offset());
                    } catch (ExecutionException error) {
                        System.out.println(error.getCause().getClass().getSimpleName());
                    }
            }
        }
    }
}
