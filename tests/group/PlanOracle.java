// Reads groups from standard input, writes the plans of Kafka's own assignors for them. Run as a single source file:
//     java -cp 'kafka-clients.jar:slf4j-api.jar' PlanOracle.java < cases
// A case is the lines `topic NAME COUNT` and `member ID INSTANCE|- TOPIC,TOPIC|-`, ended by `end`. Its answer is a line
// `ASSIGNOR MEMBER TOPIC:PARTITION …` for each assignor and member, ended by `end`.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
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
                case "member" -> members.put(words[1], subscription(words[2], words[3]));
                case "end" -> {
                    answer(new RangeAssignor(), partitions, members);
                    answer(new RoundRobinAssignor(), partitions, members);
                    System.out.println("end");
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

    static Subscription subscription(String instance, String topics) {
        List<String> names = topics.equals("-") ? List.of() : Arrays.asList(topics.split(","));
        Subscription subscription = new Subscription(names, (ByteBuffer) null);
        subscription.setGroupInstanceId(instance.equals("-") ? Optional.empty() : Optional.of(instance));
        return subscription;
    }

    static void answer(
        ConsumerPartitionAssignor assignor, List<PartitionInfo> partitions, Map<String, Subscription> members
    ) {
        Node node = new Node(1, "localhost", 9092);
        Cluster cluster = new Cluster("c", List.of(node), partitions, Set.of(), Set.of());
        var plan = assignor.assign(cluster, new GroupSubscription(members)).groupAssignment();
        new TreeMap<>(plan).forEach((member, assignment) -> {
            StringBuilder line = new StringBuilder(assignor.name()).append(' ').append(member);
            for (TopicPartition tp : assignment.partitions()) {
                line.append(' ').append(tp.topic()).append(':').append(tp.partition());
            }
            System.out.println(line);
        });
    }
}
