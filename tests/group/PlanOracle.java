// Reads groups from standard input and writes the assignments that Kafka's own assignors make for them. Run it with
//     java -cp 'kafka-clients.jar:slf4j-api.jar' PlanOracle.java < cases
// A case consists of lines `topic NAME COUNT` and `member ID INSTANCE|- TOPIC,TOPIC|- GENERATION USERDATA|-`, followed by
// `end`; USERDATA is the sticky assignor's, in hexadecimal digits. The output has a line
// `ASSIGNOR MEMBER TOPIC:PARTITION …` per assignor and member, `userdata MEMBER USERDATA` with the sticky assignor's user
// data for that assignment in generation 7, `failed ASSIGNOR` for an assignor that throws, and `end`.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public class PlanOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Subscription> members = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "topic" -> addTopic(partitions, words[1], Integer.parseInt(words[2]));
                case "member" -> members.put(words[1], subscription(words));
                case "end" -> {
                    answer(new RangeAssignor(), partitions, members);
                    answer(new RoundRobinAssignor(), partitions, members);
                    answer(new StickyAssignor(), partitions, members);
                    System.out.println("end");
                    System.out.flush();
                    partitions = new ArrayList<>();
                    members = new HashMap<>();
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    static void addTopic(List<PartitionInfo> partitions, String topic, int count) {
        Node node = new Node(1, "localhost", 9092);
        Node[] replicas = {node};
        for (int partition = 0; partition < count; partition++) {
            partitions.add(new PartitionInfo(topic, partition, node, replicas, replicas));
        }
    }

    static Subscription subscription(String[] words) {
        String instance = words[2], topics = words[3], encoded = words[5];
        List<String> names = topics.equals("-") ? List.of() : Arrays.asList(topics.split(","));
        ByteBuffer userData = encoded.equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(encoded));
        int generation = Integer.parseInt(words[4]);
        Subscription subscription = new Subscription(names, userData, List.of(), generation, Optional.empty());
        subscription.setGroupInstanceId(instance.equals("-") ? Optional.empty() : Optional.of(instance));
        return subscription;
    }

    @SuppressWarnings("removal")
    static void answer(
        ConsumerPartitionAssignor assignor, List<PartitionInfo> partitions, Map<String, Subscription> members
    ) {
        Node node = new Node(1, "localhost", 9092);
        Cluster cluster = new Cluster("c", List.of(node), partitions, Set.of(), Set.of());
        Map<String, Assignment> plan;
        try {
            plan = assignor.assign(cluster, new GroupSubscription(members)).groupAssignment();
        } catch (RuntimeException error) {
            System.out.println("failed " + assignor.name());
            return;
        }
        new TreeMap<>(plan).forEach((member, assignment) -> {
            StringBuilder line = new StringBuilder(assignor.name()).append(' ').append(member);
            for (TopicPartition tp : assignment.partitions()) {
                line.append(' ').append(tp.topic()).append(':').append(tp.partition());
            }
            System.out.println(line);
            if (assignor instanceof StickyAssignor) {
                assignor.onAssignment(assignment, new ConsumerGroupMetadata("g", 7, member, Optional.empty()));
                byte[] userData = assignor.subscriptionUserData(Set.of()).array();
                System.out.println("userdata " + member + " " + HexFormat.of().formatHex(userData));
            }
        });
    }
}
