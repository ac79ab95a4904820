// Reads groups from standard input and writes what Kafka's own assignors make of them. Run it with
//     java -cp 'kafka-clients.jar:slf4j-api.jar' Assignors.java eager|racks|cooperative < groups
// A group consists of lines, followed by `end`:
// - `topic NAME COUNT`, or with `racks` instead `partition TOPIC NUMBER RACK,RACK` (`-` for a replica without a rack)
// - `member ID INSTANCE|- SUBSCRIPTION`, its metadata in JoinGroup, in hexadecimal digits; with `eager` instead
//   `member ID INSTANCE|- TOPIC,TOPIC|- GENERATION USERDATA|-`, with the sticky assignor's user data in such digits
// The output ends with `end`, too. It has lines `KIND MEMBER TOPIC:PARTITION …`, and `failed ASSIGNOR` for one that throws:
// - eager: the plans `range`, `roundrobin`, `sticky`, and `userdata MEMBER USERDATA`, the sticky assignor's user data for
//   its plan in generation 7
// - racks (KIP-881): the plans `range` and `whole`, that of both sticky assignors before partitions are withheld
// - cooperative: `subscription MEMBER HEX HEX HEX HEX`, as Java writes it in the versions 0 to 3; the plans `whole` and
//   `cooperative-sticky`; `userdata MEMBER HEX HEX`, the user data before the plan and after it in generation 7

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
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
import java.util.function.Consumer;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public class Assignors {
    public static void main(String[] args) throws Exception {
        Consumer<Group> answer = switch (args[0]) {
            case "eager" -> Assignors::eager;
            case "racks" -> Assignors::racks;
            case "cooperative" -> Assignors::cooperative;
            default -> throw new IllegalArgumentException(args[0]);
        };
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        Group group = new Group();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (!line.equals("end")) {
                group.add(line.split(" "));
                continue;
            }
            answer.accept(group);
            System.out.println("end");
            System.out.flush();
            group = new Group();
        }
    }

    static void eager(Group group) {
        for (ConsumerPartitionAssignor assignor : List.of(new RangeAssignor(), new RoundRobinAssignor())) {
            assign(assignor, group);
        }
        assign(new StickyAssignor(), group).forEach((member, partitions) -> {
            StickyAssignor assignor = new StickyAssignor();
            System.out.println("userdata " + member + " " + userDataAfter(assignor, member, partitions));
        });
    }

    static void racks(Group group) {
        assign(new RangeAssignor(), group);
        assign(new Whole(), group);
    }

    static void cooperative(Group group) {
        new TreeMap<>(group.subscriptions()).forEach((member, subscription) -> {
            StringBuilder line = new StringBuilder("subscription ").append(member);
            for (short version = 0; version <= 3; version++) {
                line.append(' ').append(hex(ConsumerProtocol.serializeSubscription(subscription, version)));
            }
            System.out.println(line);
        });
        assign(new Whole(), group);
        assign(new CooperativeStickyAssignor(), group).forEach((member, partitions) -> {
            CooperativeStickyAssignor assignor = new CooperativeStickyAssignor();
            String before = hex(assignor.subscriptionUserData(Set.of()));
            String after = userDataAfter(assignor, member, partitions);
            System.out.println("userdata " + member + " " + before + " " + after);
        });
    }

    /** Writes the assignor's plan, and returns it by member; it is empty if the assignor throws. */
    static Map<String, List<TopicPartition>> assign(ConsumerPartitionAssignor assignor, Group group) {
        Map<String, List<TopicPartition>> plan = new TreeMap<>();
        try {
            assignor.assign(group.cluster(), new GroupSubscription(group.subscriptions())).groupAssignment()
                .forEach((member, assignment) -> plan.put(member, assignment.partitions()));
        } catch (RuntimeException error) {
            System.out.println("failed " + assignor.name());
        }
        plan.forEach((member, partitions) -> {
            StringBuilder line = new StringBuilder(assignor.name()).append(' ').append(member);
            for (TopicPartition tp : partitions) {
                line.append(' ').append(tp.topic()).append(':').append(tp.partition());
            }
            System.out.println(line);
        });
        return plan;
    }

    @SuppressWarnings("removal")
    static String userDataAfter(ConsumerPartitionAssignor assignor, String member, List<TopicPartition> partitions) {
        ConsumerGroupMetadata metadata = new ConsumerGroupMetadata("g", 7, member, Optional.empty());
        assignor.onAssignment(new Assignment(partitions), metadata);
        return hex(assignor.subscriptionUserData(Set.of()));
    }

    static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    /** The algorithm of both sticky assignors, with the owned partitions as the cooperative one reads them. */
    static class Whole extends AbstractStickyAssignor {
        @Override public String name() { return "whole"; }

        @Override protected MemberData memberData(Subscription subscription) {
            try {
                Method read = CooperativeStickyAssignor.class.getDeclaredMethod("memberData", Subscription.class);
                read.setAccessible(true);
                return (MemberData) read.invoke(new CooperativeStickyAssignor(), subscription);
            } catch (NoSuchMethodException | IllegalAccessException | InvocationTargetException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    /** The lines of a group. */
    static class Group {
        private final List<PartitionInfo> partitions = new ArrayList<>();
        private final Map<String, String[]> members = new HashMap<>();

        void add(String[] words) {
            switch (words[0]) {
                case "topic" -> {
                    for (int partition = 0; partition < Integer.parseInt(words[2]); partition++) {
                        addPartition(words[1], partition, new String[] {"-"});
                    }
                }
                case "partition" -> addPartition(words[1], Integer.parseInt(words[2]), words[3].split(","));
                case "member" -> members.put(words[1], words);
                default -> throw new IllegalArgumentException(String.join(" ", words));
            }
        }

        private void addPartition(String topic, int partition, String[] racks) {
            Node[] replicas = new Node[racks.length];
            for (int i = 0; i < racks.length; i++) {
                replicas[i] = new Node(i, "localhost", 9092, racks[i].equals("-") ? null : racks[i]);
            }
            partitions.add(new PartitionInfo(topic, partition, null, replicas, replicas));
        }

        Cluster cluster() {
            return new Cluster("c", List.of(), partitions, Set.of(), Set.of());
        }

        /** Returns the subscriptions as a leader decodes them; each assignor gets its own, as it may change them. */
        Map<String, Subscription> subscriptions() {
            Map<String, Subscription> found = new HashMap<>();
            members.forEach((member, words) -> {
                Subscription subscription = words.length == 4 ? decoded(words[3]) : described(words);
                subscription.setGroupInstanceId(words[2].equals("-") ? Optional.empty() : Optional.of(words[2]));
                found.put(member, subscription);
            });
            return found;
        }

        private static Subscription decoded(String metadata) {
            return ConsumerProtocol.deserializeSubscription(ByteBuffer.wrap(HexFormat.of().parseHex(metadata)));
        }

        private static Subscription described(String[] words) {
            List<String> topics = words[3].equals("-") ? List.of() : Arrays.asList(words[3].split(","));
            ByteBuffer userData = words[5].equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(words[5]));
            return new Subscription(topics, userData, List.of(), Integer.parseInt(words[4]), Optional.empty());
        }
    }
}
