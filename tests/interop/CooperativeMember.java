import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A member of a cooperative group until the standard input ends. Prints `assigned P P …`, all its partitions, whenever
 * they change, and `record P OFFSET` for each record. Arguments: bootstrap servers, topic,
 * group, assignors; `consumer` in their place stands for the consumer protocol. */
public class CooperativeMember {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[2]);
        settings.put("client.id", "java");
        settings.put("auto.offset.reset", "earliest");
        settings.put("fetch.max.wait.ms", "100");
        if (arguments[3].equals("consumer")) {
            settings.put("group.protocol", "consumer");
        } else {
            settings.put("heartbeat.interval.ms", "200");
            settings.put("partition.assignment.strategy", arguments[3]);
        }
        AtomicBoolean ends = new AtomicBoolean();
        Thread waiting = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (IOException closed) { // as at its end
            }
            ends.set(true);
        });
        waiting.setDaemon(true);
        waiting.start();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(arguments[1]));
            TreeSet<Integer> assigned = new TreeSet<>();
            while (!ends.get()) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100)))
                    System.out.println("record " + each.partition() + " " + each.offset());
                TreeSet<Integer> now = new TreeSet<>();
                for (TopicPartition each : consumer.assignment()) now.add(each.partition());
                if (!now.equals(assigned)) {
                    StringBuilder line = new StringBuilder("assigned");
                    now.forEach(partition -> line.append(' ').append(partition));
                    System.out.println(line);
                    assigned = now;
                }
                System.out.flush();
            }
        }
    }
}
