import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Runs transactions with Kafka's own producer; prints the offsets and the end of each.
 * Arguments: topic, settings as name=value, then the transactions, separated by semicolons. The steps of a transaction are
 * separated by commas: digits write a record to each of these partitions and flush, `offsets` and `offsets as a member` send
 * an offset of a group, `commit` and `abort` end. After an error the transaction is aborted. */
public class TransactionalProduce {
    static int number = 0;

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        for (int i = 1; i < arguments.length - 1; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            producer.partitionsFor(arguments[0]);
            for (String transaction : arguments[arguments.length - 1].split(";")) {
                producer.beginTransaction();
                try {
                    for (String step : transaction.split(",")) step(producer, arguments[0], step);
                } catch (Exception error) {
                    System.out.println("result failed");
                    producer.abortTransaction();
                }
            }
        }
    }

    static void step(KafkaProducer<byte[], byte[]> producer, String topic, String step) throws Exception {
        switch (step) {
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "offsets" -> offsets(producer, topic, new ConsumerGroupMetadata("readers"));
            case "offsets as a member" ->
                offsets(producer, topic, new ConsumerGroupMetadata("readers", 3, "member-1", Optional.of("instance-1")));
            default -> write(producer, topic, step);
        }
        if (step.equals("commit") || step.equals("abort")) System.out.println("result " + step);
    }

    static void offsets(KafkaProducer<byte[], byte[]> producer, String topic, ConsumerGroupMetadata group) {
        var offset = new OffsetAndMetadata(number, Optional.of(5), "note");
        producer.sendOffsetsToTransaction(Map.of(new TopicPartition(topic, 0), offset), group);
    }

    static void write(KafkaProducer<byte[], byte[]> producer, String topic, String partitions) throws Exception {
        List<Future<RecordMetadata>> results = new ArrayList<>();
        for (char partition : partitions.toCharArray()) {
            byte[] value = ("value-" + number++).getBytes();
            results.add(producer.send(
                new ProducerRecord<>(topic, partition - '0', 1_700_000_000_000L, "key".getBytes(), value)));
        }
        producer.flush();
        for (var result : results) System.out.println("result " + result.get().offset());
    }
}
