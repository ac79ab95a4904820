// Reads messages with Pulsar's own client, and prints what it sees of each: SERVICE_URL COUNT TOPIC…
//
// Of each topic as many, then `end`, or `more` if it has others. One line a message, fields separated by spaces, texts and bytes as `b` and base64, `-` for what is missing: value, key, whether
// the key was sent as bytes, ordering key, event time, sequence id, entry, index in its batch, then NAME:VALUE of properties.

import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

public class ReadMessages {
    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (int index = 2; index < arguments.length; index++) {
                read(client, arguments[index], Integer.parseInt(arguments[1]));
            }
        }
    }

    static void read(PulsarClient client, String topic, int count) throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES).topic(topic).subscriptionName("java")
                 .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int number = 0; number < count; number++) {
                System.out.println(shown(consumer.receive(60, TimeUnit.SECONDS)));
            }
            Message<byte[]> more = consumer.receive(200, TimeUnit.MILLISECONDS);
            System.out.println(more == null ? "end" : "more");
        }
    }

    static String shown(Message<byte[]> message) {
        StringBuilder line = new StringBuilder();
        line.append(base64(message.getValue()));
        line.append(' ').append(message.hasKey() ? base64(message.getKeyBytes()) : "-");
        line.append(' ').append(message.hasKey() && message.hasBase64EncodedKey());
        line.append(' ').append(message.hasOrderingKey() ? base64(message.getOrderingKey()) : "-");
        line.append(' ').append(message.getEventTime());
        line.append(' ').append(message.getSequenceId());
        MessageIdAdv id = (MessageIdAdv) message.getMessageId();
        line.append(' ').append(id.getEntryId());
        line.append(' ').append(id.getBatchIndex());
        new TreeMap<>(message.getProperties()).forEach((name, value) ->
            line.append(' ').append(base64(text(name))).append(':').append(base64(text(value))));
        return line.toString();
    }

    static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String base64(byte[] bytes) {
        return bytes == null ? "-" : "b" + Base64.getEncoder().encodeToString(bytes);
    }
}
