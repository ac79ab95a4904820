// Runs a case of `benchmarks.pulsar` with Pulsar's own client, and prints the figures as JSON: NAME=VALUE …, the fields of `Settings`

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

public class PulsarBenchmark {
    static final int KEYS = 5000;
    static final int WARM_UP = 50;
    static final Map<String, String> settings = new HashMap<>();
    static long started;
    static long startedCpu;

    public static void main(String[] arguments) throws Exception {
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        String name = settings.get("case");
        int messages = Integer.parseInt(settings.get("messages"));
        byte[] value = new byte[Integer.parseInt(settings.get("size"))];
        try (PulsarClient client = PulsarClient.builder().serviceUrl(settings.get("service_url")).build()) {
            switch (name) {
                case "receive" -> receive(client, messages);
                case "latency" -> call(client, value, Integer.parseInt(settings.get("calls")));
                default -> produce(client, value, messages, name.equals("produce-keys"));
            }
        }
    }

    static void produce(PulsarClient client, byte[] value, int messages, boolean withKeys) throws Exception {
        String[] names = new String[KEYS];
        Arrays.setAll(names, number -> "key-" + number);
        try (Producer<byte[]> producer =
                 client.newProducer().topic(settings.get("topic")).blockIfQueueFull(true).create()) {
            producer.send(value);
            begin();
            for (int number = 0; number < messages; number++) {
                TypedMessageBuilder<byte[]> message = producer.newMessage().value(value);
                if (withKeys) {
                    message.key(names[(int) (number * 7919L % KEYS)]);
                }
                message.sendAsync().exceptionally(error -> {
                    error.printStackTrace();
                    System.exit(1);
                    return null;
                });
            }
            producer.flush();
            end(messages, null);
        }
    }

    static void receive(PulsarClient client, int messages) throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer().topic(settings.get("topic"))
                 .subscriptionName(settings.get("subscription")).subscriptionType(SubscriptionType.Shared)
                 .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            Message<byte[]> first = consumer.receive();
            begin();
            consumer.acknowledgeAsync(first);
            long size = 0;
            for (int number = 1; number < messages; number++) {
                Message<byte[]> message = consumer.receive();
                size += message.getValue().length;
                consumer.acknowledgeAsync(message);
            }
            end(messages - 1, null);
        }
    }

    static void call(PulsarClient client, byte[] value, int calls) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(settings.get("topic")).create()) {
            for (int number = 0; number < WARM_UP; number++) {
                producer.send(value);
            }
            long[] delays = new long[calls];
            begin();
            for (int number = 0; number < calls; number++) {
                long before = System.nanoTime();
                producer.send(value);
                delays[number] = System.nanoTime() - before;
            }
            end(calls, delays);
        }
    }

    static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    static void begin() {
        started = System.nanoTime();
        startedCpu = cpu();
    }

    static void end(int counted, long[] delays) {
        double seconds = (System.nanoTime() - started) / 1e9;
        double cpu = (cpu() - startedCpu) / 1e9;
        String percentiles = "\"p50\": null, \"p99\": null";
        if (delays != null && delays.length > 0) {
            Arrays.sort(delays);
            percentiles = "\"p50\": " + delays[delays.length / 2] / 1e9 + ", \"p99\": "
                + delays[Math.min(delays.length - 1, delays.length * 99 / 100)] / 1e9;
        }
        System.out.println("{\"counted\": " + counted + ", \"seconds\": " + seconds + ", \"cpu_seconds\": " + cpu + ", "
            + percentiles + ", \"memory\": null}");
    }
}
