// Reads groups with racks from standard input and writes what Kafka's assignors make of them (KIP-881). Run it with
//     java -cp 'kafka-clients.jar:slf4j-api.jar' RackOracle.java < cases
// A case consists of lines `partition TOPIC NUMBER RACK,RACK` (`-` for a replica without a rack) and
// `member ID INSTANCE|- SUBSCRIPTION`, followed by `end`; SUBSCRIPTION is the member's metadata in JoinGroup, in hexadecimal
// digits. The output has for each member `range MEMBER TOPIC:PARTITION …` and `sticky MEMBER TOPIC:PARTITION …`, the
// assignment of both sticky assignors before partitions are withheld; then `end`. If an assignor throws there is a line
// `failed CLASS` instead.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public class RackOracle {
    /** The algorithm of both sticky assignors, with the owned partitions of the subscription. */
    static class Sticky extends AbstractStickyAssignor {
        @Override public String name() { return "sticky"; }

        @Override protected MemberData memberData(Subscription subscription) {
            return new MemberData(subscription.ownedPartitions(), subscription.generationId());
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, String> members = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "partition" -> partitions.add(partition(words));
                case "member" -> members.put(words[1], line);
                case "end" -> {
                    answer(new RangeAssignor(), partitions, members);
                    answer(new Sticky(), partitions, members);
                    System.out.println("end");
                    System.out.flush();
                    partitions = new ArrayList<>();
                    members = new HashMap<>();
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    static PartitionInfo partition(String[] words) {
        String[] racks = words[3].split(",");
        Node[] replicas = new Node[racks.length];
        for (int i = 0; i < racks.length; i++) {
            replicas[i] = new Node(i, "localhost", 9092, racks[i].equals("-") ? null : racks[i]);
        }
        return new PartitionInfo(words[1], Integer.parseInt(words[2]), null, replicas, replicas);
    }

    /** Returns the subscriptions as a leader decodes them; each assignor gets its own, as it may change them. */
    static Map<String, Subscription> subscriptions(Map<String, String> members) {
        Map<String, Subscription> found = new HashMap<>();
        members.forEach((member, line) -> {
            String[] words = line.split(" ");
            ByteBuffer metadata = ByteBuffer.wrap(HexFormat.of().parseHex(words[3]));
            Subscription subscription = ConsumerProtocol.deserializeSubscription(metadata);
            subscription.setGroupInstanceId(words[2].equals("-") ? Optional.empty() : Optional.of(words[2]));
            found.put(member, subscription);
        });
        return found;
    }

    static void answer(
        ConsumerPartitionAssignor assignor, List<PartitionInfo> partitions, Map<String, String> members
    ) {
        Cluster cluster = new Cluster("c", List.of(), partitions, Set.of(), Set.of());
        Map<String, Assignment> plan;
        try {
            plan = assignor.assign(cluster, new GroupSubscription(subscriptions(members))).groupAssignment();
        } catch (RuntimeException error) {
            System.out.println("failed " + error.getClass().getSimpleName());
            return;
        }
        new TreeMap<>(plan).forEach((member, assignment) -> {
            StringBuilder line = new StringBuilder(assignor.name()).append(' ').append(member);
            for (TopicPartition tp : assignment.partitions()) {
                line.append(' ').append(tp.topic()).append(':').append(tp.partition());
            }
            System.out.println(line);
        });
    }
}
