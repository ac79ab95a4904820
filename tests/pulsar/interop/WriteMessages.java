// Sends messages with Pulsar's own client: SERVICE_URL COMPRESSION BATCHING=TOPIC…
//
// Each line of its standard input is a message, in the form that `ReadMessages` prints: value, key, whether the key is sent as
// bytes, ordering key, event time, then NAME:VALUE of properties. All are sent to each topic, without batches in chunks (`none`),
// in batches (`default`) or in those of one key (`keys`); the id of each is printed.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;

public class WriteMessages {
    public static void main(String[] arguments) throws Exception {
        List<String> lines = new BufferedReader(new InputStreamReader(System.in)).lines().toList();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (int index = 2; index < arguments.length; index++) {
                String[] pair = arguments[index].split("=", 2);
                write(builder(client, pair[1], arguments[1], pair[0]), lines);
            }
        }
    }

    static void write(ProducerBuilder<byte[]> builder, List<String> lines) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<byte[]> producer = builder.create()) {
            for (String line : lines) {
                sent.add(message(producer, line.split(" ")).sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                System.out.println(each.get(60, TimeUnit.SECONDS));
            }
        }
    }

    static ProducerBuilder<byte[]> builder(PulsarClient client, String topic, String compression, String batching) {
        ProducerBuilder<byte[]> builder = client.newProducer(Schema.BYTES).topic(topic)
            .compressionType(CompressionType.valueOf(compression))
            .enableBatching(!batching.equals("none")).batchingMaxPublishDelay(1, TimeUnit.SECONDS)
            .enableChunking(batching.equals("none"));
        if (batching.equals("keys")) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        return builder;
    }

    static TypedMessageBuilder<byte[]> message(Producer<byte[]> producer, String[] fields) {
        TypedMessageBuilder<byte[]> message = producer.newMessage().value(bytes(fields[0]));
        if (!fields[1].equals("-")) {
            if (fields[2].equals("true")) {
                message.keyBytes(bytes(fields[1]));
            } else {
                message.key(text(fields[1]));
            }
        }
        if (!fields[3].equals("-")) {
            message.orderingKey(bytes(fields[3]));
        }
        if (!fields[4].equals("0")) {
            message.eventTime(Long.parseLong(fields[4]));
        }
        for (int index = 5; index < fields.length; index++) {
            String[] pair = fields[index].split(":");
            message.property(text(pair[0]), text(pair[1]));
        }
        return message;
    }

    static String text(String field) {
        return new String(bytes(field), StandardCharsets.UTF_8);
    }

    static byte[] bytes(String field) {
        return field.equals("-") ? null : Base64.getDecoder().decode(field.substring(1));
    }
}
