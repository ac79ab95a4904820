// Uses an id that another client has stored, with Pulsar's own client: SERVICE_URL TOPIC SUBSCRIPTION ack|seek BASE64
//
// Prints the id as this client stores it in base64, and what it then receives first if it has sought.

import java.util.Base64;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

public class UseStoredId {
    public static void main(String[] arguments) throws Exception {
        MessageId id = MessageId.fromByteArray(Base64.getDecoder().decode(arguments[4]));
        System.out.println(Base64.getEncoder().encodeToString(id.toByteArray()));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
             Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES).topic(arguments[1])
                 .subscriptionName(arguments[2]).subscriptionType(SubscriptionType.Shared)
                 .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).startMessageIdInclusive()
                 .isAckReceiptEnabled(true).enableBatchIndexAcknowledgment(true).subscribe()) {
            if (arguments[3].equals("ack")) {
                consumer.acknowledge(id);
            } else {
                consumer.seek(id);
                System.out.println(consumer.receive(60, TimeUnit.SECONDS).getData().length);
            }
        }
    }
}
