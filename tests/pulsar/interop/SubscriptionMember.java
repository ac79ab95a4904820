// A consumer with Pulsar's own client: SERVICE_URL TOPIC SUBSCRIPTION TYPE [NAME=VALUE…]
//
// It prints `ready`, then for each message `message VALUE KEY REDELIVERIES TOPIC ID NAME:VALUE…` as `ReadMessages` does, and
// `active` or `inactive` when that changes. Its standard input has a command in each line, and its end closes the consumer:
// `ack VALUE`, `nack VALUE`, `later VALUE MILLISECONDS` (to the retry letter topic); each is answered by the same line when it is done.
// VALUE is `b` and base64. Options: `name`, `queue`, `maxRedeliver`, `retry=true`, `ack=true` acknowledges each message after it was
// printed.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

public class SubscriptionMember {
    static final Map<String, Message<byte[]>> RECEIVED = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int index = 4; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        boolean acks = options.containsKey("ack");
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
             Consumer<byte[]> consumer = builder(client, arguments, options)
                 .messageListener((each, message) -> received(each, message, acks)).subscribe()) {
            print("ready");
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                obey(consumer, line);
            }
        }
    }

    static ConsumerBuilder<byte[]> builder(PulsarClient client, String[] arguments, Map<String, String> options) {
        ConsumerBuilder<byte[]> builder = client.newConsumer(Schema.BYTES)
            .topic(arguments[1]).subscriptionName(arguments[2]).subscriptionType(SubscriptionType.valueOf(arguments[3]))
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true).acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
            .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
            .receiverQueueSize(Integer.parseInt(options.getOrDefault("queue", "1000")))
            .enableRetry(options.containsKey("retry"));
        if (arguments[3].equals("Failover")) {
            builder.consumerEventListener(new ConsumerEventListener() {
                @Override
                public void becameActive(Consumer<?> consumer, int partition) {
                    print("active");
                }

                @Override
                public void becameInactive(Consumer<?> consumer, int partition) {
                    print("inactive");
                }
            });
        }
        if (options.containsKey("name")) {
            builder.consumerName(options.get("name"));
        }
        if (options.containsKey("maxRedeliver")) {
            builder.deadLetterPolicy(DeadLetterPolicy.builder()
                .maxRedeliverCount(Integer.parseInt(options.get("maxRedeliver"))).build());
        }
        return builder;
    }

    static void received(Consumer<byte[]> consumer, Message<byte[]> message, boolean acks) {
        String value = base64(message.getValue());
        RECEIVED.put(value, message);
        StringBuilder line = new StringBuilder("message ").append(value);
        line.append(' ').append(message.hasKey() ? base64(message.getKeyBytes()) : "-");
        line.append(' ').append(message.getRedeliveryCount());
        line.append(' ').append(message.getTopicName()).append(' ').append(message.getMessageId());
        new TreeMap<>(message.getProperties()).forEach((name, text) ->
            line.append(' ').append(base64(name.getBytes(StandardCharsets.UTF_8)))
                .append(':').append(base64(text.getBytes(StandardCharsets.UTF_8))));
        print(line.toString());
        if (acks) {
            consumer.acknowledgeAsync(message);
        }
    }

    static void obey(Consumer<byte[]> consumer, String line) throws Exception {
        String[] words = line.split(" ");
        Message<byte[]> message = RECEIVED.get(words[1]);
        switch (words[0]) {
            case "ack" -> consumer.acknowledge(message);
            case "nack" -> consumer.negativeAcknowledge(message);
            case "later" -> consumer.reconsumeLater(message, Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
            default -> throw new IllegalArgumentException(line);
        }
        print(line);
    }

    static String base64(byte[] bytes) {
        return bytes == null ? "-" : "b" + Base64.getEncoder().encodeToString(bytes);
    }

    static synchronized void print(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
