// Sends one message and receives one, with Pulsar's own client: SERVICE_URL TOPIC_TO_WRITE VALUE TOPIC_TO_READ

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

public class Exchange {
    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
             Producer<byte[]> producer = client.newProducer().topic(arguments[1]).create();
             Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES).topic(arguments[3]).subscriptionName("java")
                 .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            producer.send(arguments[2].getBytes());
            Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
            consumer.acknowledge(message);
            System.out.println(new String(message.getData()));
        }
    }
}
